// Random weights in the released formats, any byte range of any tensor on its own.
//
//   A value is mean + std * g; g comes from a table of normal quantiles indexed by bits of a hash of (seed, tensor,
//   group), so a range can be generated anywhere, in any order, by any number of threads. Quantised tensors are drawn
//   as codes: the table of a scale holds the codes of the quantiles. Each scale group uses the smallest scale that
//   holds the largest quantile, or (one in four) the next one up.
//
//   Means and deviations keep the streams near unit size through any number of layers, with every mechanism visible.
#pragma once

#include <cstdint>
#include <span>

#include "weights/inventory.h"

namespace deepinfer::weights {

// mean + std * g, or mean + std * |g|.
struct Distribution {
  float mean = 0, std = 1;
  bool is_absolute = false;
};
Distribution random_distribution(const WeightSpec& spec);

class RandomTensor {
 public:
  RandomTensor(const WeightSpec& spec, uint64_t seed);

  // Bytes [offset, offset + out.size()) of the stored values or codes, and of the scales.
  void codes(int64_t offset, std::span<std::byte> out) const;
  void scales(int64_t offset, std::span<std::byte> out) const;

 private:
  // A group is what one counter value generates: 32 columns of a quantised row, 16 values otherwise.
  void group(int64_t index, std::byte* out) const;
  bool has_larger_scale(int64_t scale_index) const;
  uint8_t scale_of(int64_t scale_index) const { return static_cast<uint8_t>(scale_ + has_larger_scale(scale_index)); }

  const WeightSpec spec_;
  Distribution distribution_;
  uint64_t key_;
  uint8_t scale_ = 0;
  uint8_t code_tables_[2][256] = {};  // codes of the quantiles under scale_ and scale_ + 1
};

}  // namespace deepinfer::weights
