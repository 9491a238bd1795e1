// Engram rows and gate (model.md 4.3).
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/dot.h"
#include "kernels/ref/formats.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {

void RefOps::engram_gather(Stream& stream, const EngramGatherParams& p) {
  const int64_t dim = p.table.cols;
  pool_of(stream).split(p.rows.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < p.rows.cols; ++i) {
        const int64_t row = p.rows.row<int64_t>(t)[i] - p.row_begin;
        float* out = p.out.f32(t) + i * dim;
        std::fill_n(out, dim, 0.f);
        if (row >= 0 && row < p.table.rows) decode_row(p.table, row, out);
        for (int64_t c = 0; c < dim; ++c) out[c] = r(out[c]);
      }
    }
  });
}

void RefOps::engram_gate(Stream& stream, const EngramGateParams& p) {
  const int64_t d = p.streams.cols / p.m;
  const float width_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  pool_of(stream).split(p.streams.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> weighted(static_cast<size_t>(d));
    for (int64_t t = begin; t < end; ++t) {
      if (p.is_image != nullptr && p.is_image[t] != 0) continue;
      const float* value = p.kv.f32(t) + p.m * d;
      for (int64_t j = 0; j < p.m; ++j) {
        float* h = p.streams.f32(t) + j * d;
        const float* key = p.kv.f32(t) + j * d;
        for (int64_t c = 0; c < d; ++c)
          weighted[c] = h[c] * (to_float(p.q_weight[j * d + c]) * to_float(p.k_weight[j * d + c]));
        auto inverse_rms = [&](const float* x) {
          return 1.f / std::sqrt(static_cast<float>(sum_of_products(x, x, d) / static_cast<double>(d)) + p.eps);
        };
        const float dot_product = static_cast<float>(sum_of_products(weighted.data(), key, d)) *
                                  (inverse_rms(h) * inverse_rms(key)) * width_factor;
        const float root = std::sqrt(std::max(std::fabs(dot_product), 1e-6f));
        const float gate = 1.f / (1.f + std::exp(-std::copysign(root, dot_product)));
        for (int64_t c = 0; c < d; ++c) h[c] = r(h[c] + gate * value[c]);
      }
    }
  });
}

}  // namespace deepinfer::kernels::ref
