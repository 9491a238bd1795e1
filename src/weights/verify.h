// Checks of a checkpoint's payload that opening it does not make.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "weights/checkpoint.h"

namespace deepinfer::weights {

// ue8m0 byte 255 is NaN and occurs in no sound tensor. Returns the index of the first one, or -1.
int64_t find_nan_scale(std::span<const uint8_t> scales);

enum class KnownBytes { kNotApplicable, kMatch, kDiffer };

struct Verification {
  int64_t num_scale_tensors = 0, num_scale_bytes = 0;
  int min_scale = 255, max_scale = 0;
  // Start of two tensors against the published weights; only where the layout is the released one.
  KnownBytes known_bytes = KnownBytes::kNotApplicable;
};

// Reads every scale. kCorrupt names the first tensor with a NaN scale.
Result<Verification> verify(const Checkpoint& checkpoint, ThreadPool& pool);

}  // namespace deepinfer::weights
