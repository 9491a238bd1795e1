// The merge procedure of byte-pair encoding: again and again the adjacent pair of lowest rank merges, leftmost on ties,
// until no pair has a rank.
//
//   short input   ranks of all adjacent pairs in one array, smallest found by scanning
//   long input    a heap of (rank, position) over a linked list; entries gone stale are skipped when they surface
// Both give the same ids. The second takes n log n steps whatever the input, the first is only used below a fixed
// length.
//
// Immutable after building; used by any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace deepinfer::text {

struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

// A packed pair table entry holds two ids and a rank in 64 bits.
inline constexpr int32_t kMaxTokenIds = 1 << 20;
inline constexpr int32_t kMaxMerges = (1 << 24) - 1;

class MergeTable {
 public:
  // Rank = index. Ids must be below kMaxTokenIds. A pair that occurs twice is an error.
  static Result<MergeTable> build(std::span<const Merge> merges);

  // Merges `ids` in place and returns how many are left. `num_steps`, if given, is increased by the pairs looked at.
  int64_t apply(std::span<int32_t> ids, int64_t* num_steps = nullptr) const;

 private:
  static constexpr uint32_t kNone = (1u << 24) - 1;
  uint32_t rank(int32_t left, int32_t right) const;
  uint32_t first_rank(int32_t left, int32_t right) const;
  int64_t apply_short(std::span<int32_t> ids) const;
  int64_t apply_long(std::span<int32_t> ids, int64_t* num_steps) const;

  std::vector<uint32_t>
      direct_;  // ranks of pairs of ids below kDirectIds: every run begins with bytes, whose ids are low
  // Bit per hash value that some pair has: most pairs that are asked for have no rank, and this fits a small cache.
  std::vector<uint64_t> filter_;
  int filter_shift_ = 63;
  std::vector<uint64_t> slots_;   // left 20 bits, right 20 bits, rank 24 bits; open addressing
  int shift_ = 63;                // slot = hash >> shift
  std::vector<int32_t> results_;  // by rank
};

}  // namespace deepinfer::text
