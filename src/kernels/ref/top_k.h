// The k largest of a row of scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace deepinfer::kernels::ref {

// Indices of the k largest scores in ascending order; equal scores: the lower index. -inf and NaN are never chosen.
inline std::vector<int32_t> top_k_indices(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > -std::numeric_limits<float>::infinity()) order.push_back(static_cast<int32_t>(i));
  }
  if (static_cast<int64_t>(order.size()) > k) {
    std::nth_element(order.begin(), order.begin() + k, order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    order.resize(static_cast<size_t>(k));
    std::sort(order.begin(), order.end());
  }
  return order;
}

}  // namespace deepinfer::kernels::ref
