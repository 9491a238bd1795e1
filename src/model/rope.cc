#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deepinfer::model {

std::vector<float> rope_frequencies(const ModelConfig& c, bool compressed) {
  const double dim = c.qk_rope_head_dim, base = compressed ? c.compress_rope_theta : c.rope_theta;
  std::vector<float> out;
  double low = 0, high = 0;
  const bool scaled = compressed && c.rope_scaling.has_value();
  if (scaled) {
    // Pair whose wave turns `turns` times within the original context.
    auto pair_of = [&](double turns) {
      auto length = static_cast<double>(c.rope_scaling->original_max_position_embeddings);
      return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    low = std::max(std::floor(pair_of(c.rope_scaling->beta_fast)), 0.0);
    high = std::min(std::ceil(pair_of(c.rope_scaling->beta_slow)), dim - 1);
  }
  // In fp32 step by step, as the weights were trained with: far positions turn by the last bit of a frequency.
  for (int p = 0; p < c.qk_rope_head_dim / 2; ++p) {
    float f = 1.f / std::pow(static_cast<float>(base), static_cast<float>(2 * p) / static_cast<float>(dim));
    if (scaled) {
      const auto factor = static_cast<float>(c.rope_scaling->factor),
                 span = static_cast<float>(std::max(high - low, 0.001));
      const float ramp = std::clamp((static_cast<float>(p) - static_cast<float>(low)) / span, 0.f, 1.f);
      f = f / factor * ramp + f * (1 - ramp);
    }
    out.push_back(f);
  }
  return out;
}

}  // namespace deepinfer::model
