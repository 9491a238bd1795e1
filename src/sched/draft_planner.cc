#include "sched/draft_planner.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

constexpr double kAverageRate = 0.05;  // of one step
constexpr double kSequenceRate = 0.2;  // of one round of a sequence
// From so many sequences on a step speaks for itself.
constexpr double kSteadyWidths = 24.0, kSteadyScheduled = 128.0, kLeastShare = 0.02;
constexpr double kGainRate = 0.1;    // of one step with drafts
constexpr double kTruthRate = 0.02;  // of one scheduled step
constexpr int kFirstTurns = 8;       // every width is tried so often at the start

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

DraftPlanner::DraftPlanner(const DraftConfig& config, const CostModel& cost)
    : config_(config), cost_(cost), average_(at(config.max_draft), 0.0) {}

// One row of survivals a sequence, from the round before its drafts.
Survivals DraftPlanner::older_survivals(std::span<const DraftQuery> queries) const {
  Survivals older = Survivals::zeros(static_cast<int>(queries.size()), config_.max_draft);
  for (int i = 0; i < older.num_seqs; ++i) {
    const DraftQuery& q = queries[at(i)];
    std::span<const float> values;
    if (q.is_old || q.is_draft_independent) {
      values = q.survivals;
    } else if (auto known = known_.find(q.seq); known != known_.end()) {
      values = known->second.newest;
    }
    std::span<double> row = older.of(i);
    for (int k = 0; k < std::min(config_.max_draft, q.limit); ++k) {
      if (values.empty()) {
        row[at(k)] = has_average_ ? average_[at(k)] : 1.0;  // nothing is known of anyone yet: verify
      } else if (k < static_cast<int>(values.size())) {
        row[at(k)] = static_cast<double>(values[at(k)]);
      }
      if (k > 0) row[at(k)] = std::min(row[at(k)], row[at(k - 1)]);
    }
  }
  return older;
}

// Keeps the newest survivals for the next step. Last thing of a plan: this one must not know them.
void DraftPlanner::remember(std::span<const DraftQuery> queries) {
  std::vector<double> sum(average_.size(), 0.0);
  int num_known = 0;
  for (const DraftQuery& q : queries) {
    if (q.survivals.empty()) continue;
    Known& known = known_[q.seq];
    known.newest.assign(q.survivals.begin(), q.survivals.end());
    if (known.average.empty()) {
      known.average = average_;
      if (!has_average_) known.average.assign(q.survivals.begin(), q.survivals.end());
      known.average.resize(average_.size(), 0.0);
    }
    for (std::size_t k = 0; k < std::min(known.average.size(), q.survivals.size()); ++k)
      known.average[k] += kSequenceRate * (static_cast<double>(q.survivals[k]) - known.average[k]);
    ++num_known;
    for (std::size_t k = 0; k < std::min(sum.size(), q.survivals.size()); ++k)
      sum[k] += static_cast<double>(q.survivals[k]);
  }
  if (num_known == 0) return;
  for (std::size_t k = 0; k < sum.size(); ++k) {
    double mean = sum[k] / num_known;
    average_[k] = has_average_ ? average_[k] + kAverageRate * (mean - average_[k]) : mean;
  }
  has_average_ = true;
}

// Survivals to expect of a sequence's next round.
const std::vector<double>& DraftPlanner::average_of(int32_t seq) const {
  auto known = known_.find(seq);
  return known == known_.end() ? average_ : known->second.average;
}

void DraftPlanner::observe_emitted(double expected_tokens, int tokens) {
  if (expected_tokens > 0.0) scheduled_truth_ += kTruthRate * (tokens / expected_tokens - scheduled_truth_);
}

DraftPlanner::Options DraftPlanner::rate_all(std::span<const DraftQuery> queries, const Survivals& older) {
  int num_seqs = older.num_seqs, n = config_.max_draft;
  double context = 0.0;
  for (const DraftQuery& q : queries) context += static_cast<double>(q.length) * config_.bytes_per_token;
  double sampler = sampler_.predict(num_seqs), draft = draft_pass_.predict(num_seqs);
  std::vector<double> cost = cost_.table(num_seqs, n, context, sampler);
  Options o;
  o.rates.push_back(num_seqs / (cost_.predict({num_seqs, context}) + sampler));
  double tokens = num_seqs;
  int rows = num_seqs;
  for (int w = 1; w <= n; ++w) {
    for (const DraftQuery& q : queries) {
      if (q.limit < w && q.limit != 0) continue;  // 0: off, or just started; it will have drafts
      tokens += has_average_ ? average_of(q.seq)[at(w - 1)] : 1.0;
      ++rows;
    }
    double ms = cost[at(rows - num_seqs)];
    o.rates.push_back(ms > 0.0 ? tokens / (ms + draft) : 0.0);
  }
  for (double& ms : cost)
    if (ms > 0.0) ms += draft + overhead_ms_;
  o.scheduled = choose_rows(older, cost);
  // While drafts are off there is nothing to schedule: what scheduling gained over off when there was still holds.
  auto with_drafts = std::ranges::count_if(queries, [](const DraftQuery& q) { return q.limit > 0; });
  double scheduled = o.scheduled.tokens_per_ms * scheduled_truth_;
  if (2 * with_drafts >= num_seqs) {
    double gain = scheduled / o.rates[0];
    scheduled_gain_ += (scheduled_gain_ > 0.0 ? kGainRate : 1.0) * (gain - scheduled_gain_);
  } else if (scheduled_gain_ > 0.0) {
    scheduled = o.rates[0] * scheduled_gain_;
  }
  o.rates.push_back(scheduled);
  return o;
}

bool DraftPlanner::explores_at(int64_t step) const {
  if (config_.mode == DraftMode::kFixed || config_.explore_interval <= 0) return false;
  return step < kFirstTurns * (config_.max_draft + 1) || step % config_.explore_interval == 0;
}

int DraftPlanner::choose(const Options& o, int num_seqs) {
  int n = config_.max_draft, scheduled = n + 1;
  smooth_.resize(o.rates.size(), 0.0);
  for (int i = 0; i <= scheduled; ++i) {
    // Widths are judged by averages already, scheduled by the last round alone.
    double steady = i == scheduled ? kSteadyScheduled : kSteadyWidths;
    double share = smooth_is_informed_ ? std::clamp(num_seqs / steady, kLeastShare, 1.0) : 1.0;
    smooth_[at(i)] += share * (o.rates[at(i)] / o.rates[0] - smooth_[at(i)]);
  }
  smooth_is_informed_ = has_average_;  // the first step takes every draft to be accepted: nothing to remember
  if (config_.mode == DraftMode::kFixed) return n;
  if (config_.mode == DraftMode::kScheduled) return scheduled;
  if (choice_ < 0) choice_ = n;
  int best = choice_;
  for (int i = 0; i <= scheduled; ++i) {
    double margin = choice_ == scheduled ? 0.0 : i == scheduled ? config_.hysteresis : config_.width_hysteresis;
    double needed = best == choice_ ? smooth_[at(choice_)] * (1.0 + margin) : smooth_[at(best)];
    if (i != choice_ && smooth_[at(i)] > needed) best = i;
  }
  choice_ = best;
  return best;
}

DraftDecision DraftPlanner::plan(std::span<const DraftQuery> queries, std::span<int> drafts) {
  DI_CHECK(queries.size() == drafts.size(), "{} sequences, {} counts", queries.size(), drafts.size());
  DraftDecision d;
  if (queries.empty()) return d;
  Survivals older = older_survivals(queries);
  Options options = rate_all(queries, older);
  int chosen = choose(options, static_cast<int>(queries.size())), n = config_.max_draft,
      num_seqs = static_cast<int>(queries.size());
  if (d.is_exploring = explores_at(num_steps_); d.is_exploring) {
    int64_t turn = num_steps_ < kFirstTurns * (n + 1) ? num_steps_ : num_steps_ / config_.explore_interval;
    chosen = n - static_cast<int>(turn % (n + 1));
  }
  ++num_steps_;
  d.tokens_per_ms = options.rates[at(chosen)];
  d.total_rows = num_seqs;
  if (chosen <= n) {
    d.kind = chosen == 0 ? DraftDecision::Kind::kOff : DraftDecision::Kind::kFixed;
    d.width = chosen;
    for (std::size_t i = 0; i < queries.size(); ++i) d.total_rows += drafts[i] = std::min(chosen, queries[i].limit);
  } else {
    d.kind = DraftDecision::Kind::kScheduled;
    // The split ranks by the newest survivals; positions beyond a sequence's drafts rank last and are cut below.
    Survivals newest = older;
    for (int i = 0; i < num_seqs; ++i)
      for (int k = 0; k < std::min({n, queries[at(i)].limit, static_cast<int>(queries[at(i)].survivals.size())}); ++k)
        newest.of(i)[at(k)] = static_cast<double>(queries[at(i)].survivals[at(k)]);
    std::vector<int> rows = split_rows(newest, options.scheduled.total_rows);
    for (std::size_t i = 0; i < queries.size(); ++i)
      d.total_rows += drafts[i] = std::min(rows[i] - 1, queries[i].limit);
  }
  d.expected_tokens = d.kind == DraftDecision::Kind::kScheduled ? options.scheduled.tokens : 0.0;
  remember(queries);
  // While off, one step in `probe_interval` drafts, so that the averages follow the domain; a width can be explored
  // only with drafts at hand, so the step before drafts as well.
  steps_since_drafts_ = d.kind == DraftDecision::Kind::kOff ? steps_since_drafts_ + 1 : 0;
  d.wants_drafts = steps_since_drafts_ % std::max(1, config_.probe_interval) == 0 || explores_at(num_steps_);
  return d;
}

}  // namespace deepinfer::sched
