#include "sched/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

// A round of so many sequences speaks for itself; of fewer it counts in proportion, but not less than the least share.
constexpr double kSteadyRound = 128.0, kLeastShare = 0.03;
// Of a round in the averages of a long time; rounds that the guess counts for; of them, how often a draft is accepted.
constexpr double kUsualShare = 0.01, kGuessWeight = 10.0, kGuessedAcceptance = 0.8;
constexpr int kMostMissed = 8;  // rounds that the first one after a pause stands for
// Steps after which what is known of drafts that are not verified is old.
constexpr int kStaleAfter = 8;
// A size of step that was never measured may turn out so much cheaper than predicted.
constexpr double kOptimism = 0.25;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

DraftPlanner::DraftPlanner(const DraftConfig& config, const CostModel& cost)
    : config_(config), cost_(cost), gain_(Gain::guess(config.max_draft)), usual_(gain_) {}

// One row of survivals a sequence, from the round before its drafts.
Survivals DraftPlanner::older_survivals(std::span<const DraftQuery> queries) const {
  Survivals older = Survivals::zeros(static_cast<int>(queries.size()), config_.max_draft);
  for (int i = 0; i < older.num_seqs; ++i) {
    const DraftQuery& q = queries[at(i)];
    std::span<const float> values;
    if (q.is_old || q.is_draft_independent) {
      values = q.survivals;
    } else if (auto known = newest_.find(q.seq); known != newest_.end()) {
      values = known->second;
    }
    std::span<double> row = older.of(i);
    for (int k = 0; k < config_.max_draft; ++k) {
      if (values.empty()) {
        row[at(k)] = gain_.by_position[at(k)];
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
  for (const DraftQuery& q : queries)
    if (!q.survivals.empty()) newest_[q.seq].assign(q.survivals.begin(), q.survivals.end());
}

DraftPlanner::Gain DraftPlanner::Gain::guess(int n) {
  Gain gain{1, {0.0}, {}};
  double survival = 1.0;
  for (int k = 0; k < n; ++k) {
    gain.by_position.push_back(survival *= kGuessedAcceptance);
    gain.best.push_back(gain.best.back() + survival);
  }
  return gain;
}

// Another number of sequences: drafts in the same proportion bring tokens in proportion.
void DraftPlanner::Gain::resize(int new_num_seqs, int n) {
  if (num_seqs == new_num_seqs) return;
  std::vector<double> resized(at(new_num_seqs * n + 1));
  double scale = static_cast<double>(num_seqs) / new_num_seqs;
  for (std::size_t i = 0; i < resized.size(); ++i) {
    double place = static_cast<double>(i) * scale;
    std::size_t below = std::min(static_cast<std::size_t>(place), best.size() - 1),
                above = std::min(below + 1, best.size() - 1);
    double share = place - static_cast<double>(below);
    resized[i] = ((1.0 - share) * best[below] + share * best[above]) / scale;
  }
  best = std::move(resized);
  num_seqs = new_num_seqs;
}

void DraftPlanner::Gain::approach(const Gain& other, double share) {
  for (std::size_t i = 0; i < best.size(); ++i) best[i] += share * (other.best[i] - best[i]);
  for (std::size_t k = 0; k < by_position.size(); ++k)
    by_position[k] += share * (other.by_position[k] - by_position[k]);
}

// Averages a round in, if most sequences had drafts in it.
void DraftPlanner::learn_round(std::span<const DraftQuery> queries, const Survivals& older) {
  int num_seqs = older.num_seqs, n = config_.max_draft;
  const double young = 1.0 / (kGuessWeight + num_rounds_ + 1);
  double share = std::clamp(num_seqs / kSteadyRound, std::max(kLeastShare, young), 1.0);
  auto with_drafts = std::ranges::count_if(queries, [this](const DraftQuery& q) {
    return !q.survivals.empty() && (q.is_old || q.is_draft_independent || newest_.contains(q.seq));
  });
  if (2 * with_drafts < num_seqs) {
    gain_.approach(usual_, share);
    ++missed_rounds_;
    return;
  }
  share = 1.0 - std::pow(1.0 - share, 1 + std::min(missed_rounds_, kMostMissed));
  missed_rounds_ = 0;
  Gain round{num_seqs, {0.0}, std::vector<double>(at(n))};
  std::vector<double> sorted = older.values;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (double survival : sorted) round.best.push_back(round.best.back() + survival);
  for (int i = 0; i < num_seqs; ++i)
    for (int k = 0; k < n; ++k) round.by_position[at(k)] += older.of(i)[at(k)] / num_seqs;
  gain_.approach(round, share);
  usual_.approach(round, std::max(kUsualShare, young));
  ++num_rounds_;
}

std::vector<DraftPlanner::Option> DraftPlanner::rate_all(std::span<const DraftQuery> queries) const {
  int num_seqs = static_cast<int>(queries.size()), n = config_.max_draft;
  double context = 0.0;
  for (const DraftQuery& q : queries) context += static_cast<double>(q.length) * config_.bytes_per_token;
  double sampler = sampler_.predict(num_seqs), draft = draft_pass_.predict(num_seqs);
  if (draft == 0.0) draft = config_.draft_share * cost_.predict({num_seqs * n, 0.0});
  std::vector<double> cost = cost_.table(num_seqs, n, context, sampler);
  std::vector<Option> options = {{num_seqs, static_cast<double>(num_seqs), cost[0]}};
  for (double& ms : cost)
    if (ms > 0.0) ms += draft;
  double tokens = num_seqs;
  int rows = num_seqs;
  for (int w = 1; w <= n; ++w) {
    // A sequence near its end has few; one without is off, or just started: it will have drafts.
    auto count = static_cast<int>(
        std::ranges::count_if(queries, [w](const DraftQuery& q) { return q.limit >= w || q.limit == 0; }));
    tokens += count * gain_.by_position[at(w - 1)];
    rows += count;
    options.push_back({rows, tokens, cost[at(rows - num_seqs)]});
  }
  options.push_back(best_schedule(num_seqs, rows, cost));
  return options;
}

DraftPlanner::Option DraftPlanner::best_schedule(int num_seqs, int most_rows, std::span<const double> cost) const {
  Option best;
  for (int rows = num_seqs; rows <= most_rows; ++rows) {
    double ms = cost[at(rows - num_seqs)];
    Option o{rows, num_seqs + gain_.best[at(rows - num_seqs)], ms};
    if (o.rate() > best.rate()) best = o;
  }
  return best;
}

int DraftPlanner::choose(std::span<const Option> options) {
  int n = config_.max_draft, scheduled = n + 1;
  if (config_.mode == DraftMode::kFixed) return n;
  if (config_.mode == DraftMode::kScheduled) return scheduled;
  if (choice_ < 0) choice_ = n;
  int best = choice_;
  for (int i = 0; i <= scheduled; ++i) {
    double margin = choice_ == scheduled ? 0.0 : i == scheduled ? config_.hysteresis : config_.width_hysteresis;
    double needed = best == choice_ ? options[at(choice_)].rate() * (1.0 + margin) : options[at(best)].rate();
    if (i != choice_ && options[at(i)].rate() > needed) best = i;
  }
  return choice_ = best;
}

// The option to try instead of the chosen one; -1: none. What it is expected to lose must fit into the share of the
// time that trying may take.
int DraftPlanner::explore(std::span<const Option> options, int chosen, bool has_drafts) {
  const Option& current = options[at(chosen)];
  elapsed_ms_ += current.ms;
  if (config_.mode == DraftMode::kFixed || !(current.rate() > 0.0)) return -1;
  auto loss_of = [&](const Option& o) { return std::max(0.0, o.ms - o.tokens / current.rate()); };
  auto fits = [&](const Option& o) { return explored_ms_ + loss_of(o) <= config_.explore_share * elapsed_ms_; };
  int best = -1;
  double best_rate = current.rate();
  for (int w = 0; w <= config_.max_draft; ++w) {
    const Option& o = options[at(w)];
    if (w == chosen || !(o.ms > 0.0) || cost_.knows(o.rows)) continue;
    double optimistic = o.tokens / (o.ms * (1.0 - kOptimism));
    if (optimistic > best_rate && fits(o)) best = w, best_rate = optimistic;
  }
  if (best < 0 && steps_partial_ >= kStaleAfter) {
    const int stale = chosen == 0 ? best_with_drafts(options) : config_.max_draft;
    if (options[at(stale)].ms > 0.0 && fits(options[at(stale)])) best = stale;
  }
  if (best == 0 || (best > 0 && has_drafts)) explored_ms_ += loss_of(options[at(best)]);
  return best;
}

int DraftPlanner::best_with_drafts(std::span<const Option> options) {
  auto slower = [](const Option& a, const Option& b) { return a.rate() < b.rate(); };
  return static_cast<int>(std::max_element(options.begin() + 1, options.end(), slower) - options.begin());
}

// The split ranks by the newest survivals; positions beyond a sequence's drafts rank last and are cut.
void DraftPlanner::split(std::span<const DraftQuery> queries, const Survivals& older, int total_rows,
                         std::span<int> drafts) const {
  Survivals newest = older;
  for (int i = 0; i < newest.num_seqs; ++i) {
    const DraftQuery& q = queries[at(i)];
    std::span<double> row = newest.of(i);
    for (int k = 0; k < config_.max_draft; ++k) {
      if (k >= q.limit) {
        row[at(k)] = 0.0;
      } else if (k < static_cast<int>(q.survivals.size())) {
        row[at(k)] = static_cast<double>(q.survivals[at(k)]);
      }
    }
  }
  std::vector<int> rows = split_rows(newest, total_rows);
  for (std::size_t i = 0; i < queries.size(); ++i) drafts[i] = std::min(rows[i] - 1, queries[i].limit);
}

DraftDecision DraftPlanner::plan(std::span<const DraftQuery> queries, std::span<int> drafts) {
  DI_CHECK(queries.size() == drafts.size(), "{} sequences, {} counts", queries.size(), drafts.size());
  DraftDecision d;
  if (queries.empty()) return d;
  int num_seqs = static_cast<int>(queries.size()), n = config_.max_draft;
  gain_.resize(num_seqs, n);
  usual_.resize(num_seqs, n);
  Survivals older = older_survivals(queries);
  learn_round(queries, older);
  std::vector<Option> options = rate_all(queries);
  bool has_drafts = std::ranges::any_of(queries, [](const DraftQuery& q) { return q.limit > 0; });
  int chosen = choose(options), tried = explore(options, chosen, has_drafts);
  d.is_exploring = tried == 0 || (tried > 0 && has_drafts);
  if (d.is_exploring) chosen = tried;
  d.tokens_per_ms = options[at(chosen)].rate();
  if (chosen > n) {
    d.kind = DraftDecision::Kind::kScheduled;
    split(queries, older, options[at(chosen)].rows, drafts);
  } else {
    d.kind = chosen == 0 ? DraftDecision::Kind::kOff : DraftDecision::Kind::kFixed;
    d.width = chosen;
    for (std::size_t i = 0; i < queries.size(); ++i) drafts[i] = std::min(chosen, queries[i].limit);
  }
  d.total_rows = num_seqs;
  for (int count : drafts) d.total_rows += count;
  const bool verifies_all = has_drafts && d.total_rows == options[at(n)].rows;
  steps_partial_ = verifies_all || d.is_exploring ? 0 : steps_partial_ + 1;
  remember(queries);
  // A width can be tried only with drafts at hand; a try goes back to the choice.
  d.wants_drafts = choice_ != 0 || (tried > 0 && !d.is_exploring);
  return d;
}

}  // namespace deepinfer::sched
