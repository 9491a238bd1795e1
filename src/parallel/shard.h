// How an axis is cut between ranks: contiguous ranges whose borders are multiples of a quantum.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::parallel {

struct Range {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const Range&) const = default;
};

// A row group of an fp8 weight shares one row of scales, so no border may fall inside it.
inline constexpr int64_t kWeightQuantum = 32;

// Part `part` of [0, count). Parts differ by at most one quantum; some are empty when there are more parts than quanta.
Range shard_range(int64_t count, int64_t quantum, int num_parts, int part);

// Borders of all parts: part p is [bounds[p], bounds[p + 1]).
std::vector<int64_t> shard_bounds(int64_t count, int64_t quantum, int num_parts);

}  // namespace deepinfer::parallel
