#include "sched/verification_budget.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

std::size_t index_of(int i) {
  return static_cast<std::size_t>(i);
}

std::vector<double> sorted_descending(const Survivals& s) {
  std::vector<double> sorted = s.values;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return sorted;
}

// Flat indices of the `count` best survivals, lower index first among equals.
std::vector<int32_t> best_indices(const Survivals& s, int count) {
  std::vector<int32_t> order(s.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  auto is_before = [&](int32_t a, int32_t b) {
    double x = s.values[index_of(a)], y = s.values[index_of(b)];
    return x != y ? x > y : a < b;
  };
  if (count < static_cast<int>(order.size())) {
    std::nth_element(order.begin(), order.begin() + count, order.end(), is_before);
    order.resize(index_of(count));
  }
  return order;
}

}  // namespace

Survivals Survivals::zeros(int num_seqs, int max_draft) {
  return {num_seqs, max_draft, std::vector<double>(index_of(num_seqs) * index_of(max_draft), 0.0)};
}

void Survivals::set_from_confidences(int seq, std::span<const float> confidences) {
  double product = 1.0;
  std::span<double> row = of(seq);
  for (std::size_t k = 0; k < row.size(); ++k) {
    double c = k < confidences.size() ? static_cast<double>(confidences[k]) : 0.0;
    product *= c > 0.0 ? std::min(c, 1.0) : 0.0;
    row[k] = product;
  }
}

void Survivals::set_unknown(int seq, bool has_draft) {
  for (double& v : of(seq)) v = has_draft ? 1.0 : 0.0;
}

Budget choose_rows(const Survivals& s, std::span<const double> cost, bool wants_trace) {
  Budget best{.total_rows = s.num_seqs, .tokens = static_cast<double>(s.num_seqs)};
  if (cost.empty()) {
    best.total_rows = s.num_seqs * (1 + s.max_draft);
    for (double v : s.values) best.tokens += v;
    return best;
  }
  std::vector<double> sorted = sorted_descending(s);
  double tokens = s.num_seqs;
  for (std::size_t extra = 0; extra <= sorted.size() && extra < cost.size(); ++extra) {
    if (extra > 0) tokens += sorted[extra - 1];
    if (!(cost[extra] > 0.0)) continue;
    double rate = tokens / cost[extra];
    int rows = s.num_seqs + static_cast<int>(extra);
    if (wants_trace) best.trace.emplace_back(rows, rate);
    if (rate > best.tokens_per_ms) best.total_rows = rows, best.tokens = tokens, best.tokens_per_ms = rate;
  }
  return best;
}

std::vector<double> staircase_cost(std::span<const Tier> tiers, double slope_ms_per_row, double fixed_ms, int num_seqs,
                                   int max_draft) {
  std::vector<double> cost;
  if (tiers.empty()) return cost;
  std::size_t tier = 0;
  for (int rows = num_seqs; rows <= num_seqs * (1 + max_draft); ++rows) {
    while (tier < tiers.size() && tiers[tier].rows < rows) ++tier;
    bool exists = tier < tiers.size();
    cost.push_back(exists ? tiers[tier].ms + std::max(0.0, slope_ms_per_row) * tiers[tier].rows + fixed_ms : 0.0);
  }
  return cost;
}

std::vector<int> split_rows(const Survivals& s, int total_rows) {
  DI_CHECK(total_rows >= s.num_seqs, "{} rows for {} sequences", total_rows, s.num_seqs);
  std::vector<int> rows(index_of(s.num_seqs), 1);
  if (s.max_draft == 0) return rows;
  for (int32_t index : best_indices(s, total_rows - s.num_seqs)) ++rows[index_of(index / s.max_draft)];
  return rows;
}

std::vector<int> reallocate_rows(std::span<const int> remap, const Survivals& previous, int total_rows) {
  Survivals now = Survivals::zeros(static_cast<int>(remap.size()), previous.max_draft);
  for (std::size_t i = 0; i < remap.size(); ++i)
    if (remap[i] >= 0) std::ranges::copy(previous.of(remap[i]), now.of(static_cast<int>(i)).begin());
  return split_rows(now, total_rows);
}

std::vector<int> early_stop_rows(const Survivals& s, std::span<const double> cost) {
  std::vector<double> sorted = sorted_descending(s);
  double tokens = s.num_seqs, last = -1.0;
  int rows = s.num_seqs;
  for (std::size_t extra = 0; extra <= sorted.size() && extra < cost.size(); ++extra) {
    if (extra > 0) tokens += sorted[extra - 1];
    double rate = cost[extra] > 0.0 ? tokens / cost[extra] : 0.0;
    if (rate < last || !(rate > 0.0)) break;
    last = rate;
    rows = s.num_seqs + static_cast<int>(extra);
  }
  return split_rows(s, rows);
}

std::vector<double> tier_tokens(const Survivals& s, std::span<const Tier> tiers) {
  std::vector<double> sorted = sorted_descending(s), out(2 * tiers.size(), 0.0);
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    if (tiers[t].rows < s.num_seqs) {
      out[tiers.size() + t] = 1.0;
      continue;
    }
    double tokens = s.num_seqs;
    int extra = rows_within(s, tiers[t].rows) - s.num_seqs;
    for (int i = 0; i < extra; ++i) tokens += sorted[index_of(i)];
    out[t] = tokens;
  }
  return out;
}

int choose_joint_tier(std::span<const double> summed, std::span<const Tier> tiers) {
  int best = -1;
  double best_rate = 0.0;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    if (summed[tiers.size() + t] > 0.0) continue;
    double rate = summed[t] / tiers[t].ms;
    if (rate > best_rate) best_rate = rate, best = static_cast<int>(t);
  }
  return best;
}

int rows_within(const Survivals& s, int tier_rows) {
  return std::min(tier_rows, s.num_seqs * (1 + s.max_draft));
}

}  // namespace deepinfer::sched
