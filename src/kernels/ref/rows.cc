// What works on one row at a time: norms, rotation, tables, means.
#include <algorithm>
#include <cmath>

#include "kernels/ref/dot.h"
#include "kernels/ref/formats.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {

void RefOps::norm_row(const float* x, const bf16* gain, int64_t n, float eps, float* y) const {
  const float mean_square = static_cast<float>(sum_of_products(x, x, n) / static_cast<double>(n));
  const float inverse = 1.f / std::sqrt(mean_square + eps);
  for (int64_t c = 0; c < n; ++c) y[c] = r(to_float(gain[c]) * (x[c] * inverse));
}

void RefOps::rotate_row(float* x, int64_t n, const float* cos, const float* sin, int64_t pairs, bool inverse) const {
  DI_CHECK(2 * pairs <= n, "{} rotated pairs in {} channels", pairs, n);
  float* tail = x + n - 2 * pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = tail[2 * i], b = tail[2 * i + 1], s = inverse ? -sin[i] : sin[i];
    tail[2 * i] = a * cos[i] - b * s;
    tail[2 * i + 1] = a * s + b * cos[i];
  }
  for (int64_t c = 0; c < n; ++c) x[c] = r(x[c]);
}

void RefOps::rms_norm(Stream& stream, const RmsNormParams& p) {
  pool_of(stream).split(p.x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) norm_row(p.x.f32(t), p.gain, p.x.cols, p.eps, p.y.f32(t));
  });
}

void RefOps::rope(Stream& stream, const RopeParams& p) {
  pool_of(stream).split(p.cos.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (size_t i = 0; i < p.freq.size(); ++i) {
        const float angle = static_cast<float>(p.positions[t]) * p.freq[i];
        p.cos.f32(t)[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
        p.sin.f32(t)[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

void RefOps::embed(Stream& stream, const EmbedParams& p) {
  const int64_t d = p.table.empty() ? p.given.cols : p.table.cols;
  pool_of(stream).split(p.streams.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* first = p.streams.f32(t);
      const int64_t row = p.ids[t] - p.row_begin;
      std::fill_n(first, d, 0.f);
      if (p.ids[t] < 0) {
        if (!p.given.empty()) std::transform(p.given.f32(t), p.given.f32(t) + d, first, [&](float v) { return r(v); });
      } else if (row >= 0 && row < p.table.rows) {
        decode_row(p.table, row, first);
      }
      for (int64_t at = d; at < p.streams.cols; at += d) std::copy_n(first, d, first + at);
    }
  });
}

void RefOps::stream_mean(Stream& stream, const StreamMeanParams& p) {
  const int64_t d = p.mean.cols;
  pool_of(stream).split(p.mean.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < d; ++c) {
        float sum = 0;
        for (int j = 0; j < p.m; ++j) sum += p.streams.f32(t)[j * d + c];
        p.mean.f32(t)[c] = r(sum / static_cast<float>(p.m));
      }
    }
  });
}

void RefOps::gather_rows(Stream& stream, const GatherRowsParams& p) {
  pool_of(stream).split(p.out.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = p.ids[t] - p.row_begin;
      if (row >= 0 && row < p.table.rows) {
        decode_row(p.table, row, p.out.f32(t));
      } else {
        std::fill_n(p.out.f32(t), p.out.cols, 0.f);
      }
    }
  });
}

}  // namespace deepinfer::kernels::ref
