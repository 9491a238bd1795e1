// Rotation frequencies (model.md 3.7).
#pragma once

#include <vector>

#include "weights/config.h"

namespace deepinfer::model {

// [R / 2] fp32. compressed: YaRN over compress_rope_theta, for layers with ratio > 0; else plain rope_theta.
std::vector<float> rope_frequencies(const ModelConfig& config, bool compressed);

}  // namespace deepinfer::model
