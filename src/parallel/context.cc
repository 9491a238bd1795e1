#include "parallel/context.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::parallel {
namespace {

std::size_t at(int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

MirrorPlan mirror_rows(std::span<const int> rows_of_seq, int cp) {
  MirrorPlan plan{.cp = cp};
  plan.index.resize(at(cp));
  int total = 0;
  for (int q : rows_of_seq) {
    plan.rows_per_rank += 2 * ceil_div(q, 2 * cp);
    total += q;
  }
  plan.reverse.resize(at(total));
  int first = 0, base = 0;  // packed row and place of the sequence
  for (int q : rows_of_seq) {
    int h = ceil_div(q, 2 * cp);
    for (int rank = 0; rank < cp; ++rank)
      for (int half : {0, 1}) {
        int block = half == 0 ? rank : 2 * cp - 1 - rank;
        for (int j = 0; j < h; ++j) {
          int t = block * h + j;
          plan.index[at(rank)].push_back(t < q ? first + t : -1);
          if (t < q) plan.reverse[at(first + t)] = rank * plan.rows_per_rank + base + half * h + j;
        }
      }
    first += q;
    base += 2 * h;
  }
  return plan;
}

KeyRanges key_ranges(const MirrorPlan& plan, std::span<const int> rows_of_seq, std::span<const int64_t> keys_of_seq,
                     int ratio) {
  KeyRanges ranges{std::vector<std::vector<int64_t>>(at(plan.cp)), std::vector<std::vector<int64_t>>(at(plan.cp))};
  for (int rank = 0; rank < plan.cp; ++rank) {
    const auto& index = plan.index[at(rank)];
    std::size_t place = 0;
    int64_t key_base = 0;
    int first = 0;
    for (std::size_t i = 0; i < rows_of_seq.size(); ++i) {
      int q = rows_of_seq[i];
      for (int j = 0; j < 2 * ceil_div(q, 2 * plan.cp); ++j, ++place) {
        int row = index[place];
        int64_t visible = row < 0 ? 0 : (keys_of_seq[i] - q + (row - first) + 1) / ratio;
        ranges.begin[at(rank)].push_back(key_base);
        ranges.end[at(rank)].push_back(key_base + visible);
      }
      first += q;
      key_base += std::max<int64_t>(1, keys_of_seq[i] / ratio);
    }
  }
  return ranges;
}

std::vector<int64_t> causal_pairs(int length, int cp) {
  std::vector<int64_t> pairs(at(cp), 0);
  MirrorPlan plan = mirror_rows(std::span(&length, 1), cp);
  for (int rank = 0; rank < cp; ++rank)
    for (int row : plan.index[at(rank)]) pairs[at(rank)] += row + 1;  // padding adds 0
  return pairs;
}

BoundaryPlan boundary_rows(std::span<const int> rows_of_seq, std::span<const int> kept_of_seq, int cp) {
  DI_CHECK(rows_of_seq.size() == kept_of_seq.size(), "{} sequences, {} kept counts", rows_of_seq.size(),
           kept_of_seq.size());
  MirrorPlan all = mirror_rows(rows_of_seq, cp);
  std::vector<bool> is_kept(all.reverse.size(), false);
  int first = 0;
  for (std::size_t i = 0; i < rows_of_seq.size(); ++i) {
    int kept = std::min(kept_of_seq[i], rows_of_seq[i]);
    for (int t = rows_of_seq[i] - kept; t < rows_of_seq[i]; ++t) is_kept[at(first + t)] = true;
    first += rows_of_seq[i];
  }
  BoundaryPlan plan;
  plan.contrib.resize(at(cp));
  std::vector<std::pair<int, int>> where(is_kept.size());  // of a kept row: rank, place in its contribution
  for (int rank = 0; rank < cp; ++rank)
    for (std::size_t place = 0; place < all.index[at(rank)].size(); ++place) {
      int row = all.index[at(rank)][place];
      if (row < 0 || !is_kept[at(row)]) continue;
      where[at(row)] = {rank, static_cast<int>(plan.contrib[at(rank)].size())};
      plan.contrib[at(rank)].push_back(static_cast<int>(place));
    }
  for (const auto& c : plan.contrib) plan.pad = std::max(plan.pad, static_cast<int>(c.size()));
  for (auto& c : plan.contrib) c.resize(at(plan.pad), -1);
  for (std::size_t row = 0; row < is_kept.size(); ++row)
    if (is_kept[row]) plan.reverse.push_back(where[row].first * plan.pad + where[row].second);
  plan.kept = mirror_rows(kept_of_seq, cp);
  return plan;
}

}  // namespace deepinfer::parallel
