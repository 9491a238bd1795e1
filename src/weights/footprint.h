// How many bytes a model holds and moves, from the configuration alone.
#pragma once

#include <array>
#include <cstdint>

#include "weights/config.h"
#include "weights/inventory.h"

namespace deepinfer::weights {

using PartBytes = std::array<int64_t, kNumParts>;
PartBytes bytes_by_part(const std::vector<WeightSpec>& specs);

// Where a weight may live: with every rank, on one rank of several, or gathered row by row from host memory.
struct Footprint {
  int64_t dense = 0;    // all that every token needs, draft stages included
  int64_t experts = 0;  // routed experts, the draft's included
  int64_t engram_tables = 0;
  int64_t vision = 0;
  int64_t total() const { return dense + experts + engram_tables + vision; }
};
Footprint footprint(const ModelConfig& config);

// Bytes that one decode step of one sequence reads at a context length, without drafts.
struct DecodeBytes {
  int64_t dense = 0;    // weights of the backbone and the head
  int64_t experts = 0;  // top-k of every layer
  int64_t engram = 0;   // table rows
  int64_t cache = 0;    // index keys scored, chosen entries, windows
  int64_t total() const { return dense + experts + engram + cache; }
};
DecodeBytes decode_bytes(const ModelConfig& config, int64_t context);

// Floating-point operations of one token, products only (two per weight).
double decode_flops(const ModelConfig& config);

}  // namespace deepinfer::weights
