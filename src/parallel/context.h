// Context parallelism: which rows of a prefill each rank computes, and how rows come back together.
//
//   Each sequence of q rows is cut into 2C blocks of h = ceil(q / 2C); rank r computes blocks r and 2C - 1 - r, so that
//   causal work is equal ("mirror"):
//
//       rank      0   1   2   2   1   0        C = 3
//       block     0   1   2   3   4   5
//
//   A rank's rows are, sequence after sequence, its first block and then its second; rows past q are padding (-1).
//
// Pure functions (spec: runtime.md 6, replay.md 5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::parallel {

struct MirrorPlan {
  int cp = 1;
  int rows_per_rank = 0;
  std::vector<std::vector<int>> index;  // [cp][rows_per_rank], packed row or -1
  std::vector<int> reverse;             // [rows]: rank x rows_per_rank + place, for every packed row
};
MirrorPlan mirror_rows(std::span<const int> rows_of_seq, int cp);

// Keys that the rows of a plan may see in a cache with one entry per `ratio` tokens, packed over sequences: row by row
// the range [begin, end). Each sequence has at least one place; padding rows see nothing.
struct KeyRanges {
  std::vector<std::vector<int64_t>> begin, end;  // [cp][rows_per_rank]
};
KeyRanges key_ranges(const MirrorPlan& plan, std::span<const int> rows_of_seq, std::span<const int64_t> keys_of_seq,
                     int ratio);

// (query, key) pairs of causal attention over `length` rows that each rank computes.
std::vector<int64_t> causal_pairs(int length, int cp);

// Where the row set shrinks to the kept tail of each sequence (truncated prefill): what each rank contributes to the
// all-gather, and where the kept rows then are.
struct BoundaryPlan {
  int pad = 0;                            // rows a rank contributes, the largest over ranks
  std::vector<std::vector<int>> contrib;  // [cp][pad], place in the rank's rows or -1
  std::vector<int> reverse;               // [kept rows]: rank x pad + place in the gathered buffer
  MirrorPlan kept;                        // the kept rows, mirrored again
};
BoundaryPlan boundary_rows(std::span<const int> rows_of_seq, std::span<const int> kept_of_seq, int cp);

}  // namespace deepinfer::parallel
