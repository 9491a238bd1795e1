// One mHC site (model.md 3.1, 3.2).
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/dot.h"
#include "kernels/ref/product.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {
namespace {

float sigmoid(float x) {
  return 1.f / (1.f + std::exp(-x));
}

// c[i, j] /= sum over j c[i, j] + eps (rows), or over i (columns)
void divide_by_sums(float* c, int m, bool by_rows, float eps) {
  const int along = by_rows ? 1 : m, across = by_rows ? m : 1;
  for (int a = 0; a < m; ++a) {
    float sum = 0;
    for (int b = 0; b < m; ++b) sum += c[a * across + b * along];
    for (int b = 0; b < m; ++b) c[a * across + b * along] /= sum + eps;
  }
}

void sinkhorn(float* c, int m, int iters, float eps) {
  for (int i = 0; i < m; ++i) {
    float* row = c + i * m;
    const float top = *std::max_element(row, row + m);
    float sum = 0;
    for (int j = 0; j < m; ++j) row[j] = std::exp(row[j] - top);
    for (int j = 0; j < m; ++j) sum += row[j];
    for (int j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  divide_by_sums(c, m, false, eps);
  for (int k = 1; k < iters; ++k) {
    divide_by_sums(c, m, true, eps);
    divide_by_sums(c, m, false, eps);
  }
}

// The mixes of one row from fn f.
void mixes(const MhcParams& p, const float* h, const float* fn_f, int64_t width, float* pre, float* post, float* comb) {
  const int m = p.m;
  const float mean_square = static_cast<float>(sum_of_products(h, h, width) / static_cast<double>(width));
  const float inverse = 1.f / std::sqrt(mean_square + p.rms_eps);
  auto mix = [&](int i, int which) { return fn_f[i] * inverse * p.scale[which] + p.base[i]; };
  for (int j = 0; j < m; ++j) pre[j] = sigmoid(mix(j, 0)) + p.hc_eps;
  for (int j = 0; j < m; ++j) post[j] = 2 * sigmoid(mix(m + j, 1));
  for (int i = 0; i < m * m; ++i) comb[i] = mix(2 * m + i, 2);
  sinkhorn(comb, m, p.sinkhorn_iters, p.hc_eps);
}

}  // namespace

void RefOps::mhc(Stream& stream, const MhcParams& p) {
  ThreadPool& threads = pool_of(stream);
  const int m = p.m;
  const int64_t num_rows = p.streams.rows, width = p.streams.cols, d = width / m;
  if (!p.y.empty()) {
    threads.split(num_rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> column(static_cast<size_t>(m));
      for (int64_t t = begin; t < end; ++t) {
        float* h = p.streams.f32(t);
        for (int64_t c = 0; c < d; ++c) {
          for (int j = 0; j < m; ++j) {
            double sum = static_cast<double>(p.post_in.f32(t)[j]) * p.y.f32(t)[c];
            for (int i = 0; i < m; ++i) sum += static_cast<double>(p.comb_in.f32(t)[i * m + j]) * h[i * d + c];
            column[j] = r(static_cast<float>(sum));
          }
          for (int j = 0; j < m; ++j) h[j * d + c] = column[j];
        }
      }
    });
  }
  if (p.fn != nullptr) {
    const Weight fn{.kind = Weight::Kind::kF32, .codes = p.fn, .rows = (2 + m) * m, .cols = width};
    Matrix fn_f(num_rows, fn.rows);
    product(threads, p.streams, fn, 0, fn.rows, [&](int64_t t, int64_t i, float sum) { fn_f.row(t)[i] = sum; });
    for (int64_t t = 0; t < num_rows; ++t) {
      mixes(p, p.streams.f32(t), fn_f.row(t), width, p.pre_out.f32(t), p.post_out.f32(t), p.comb_out.f32(t));
    }
  }
  if (p.gain == nullptr && p.folded.empty()) return;
  threads.split(num_rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> folded(static_cast<size_t>(d));
    for (int64_t t = begin; t < end; ++t) {
      const float *h = p.streams.f32(t), *pre = p.pre_in.f32(t);
      for (int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (int j = 0; j < m; ++j) sum += static_cast<double>(pre[j]) * h[j * d + c];
        folded[c] = r(static_cast<float>(sum));
      }
      if (!p.folded.empty()) std::copy_n(folded.data(), d, p.folded.f32(t));
      if (p.gain != nullptr) norm_row(folded.data(), p.gain, d, p.rms_eps, p.x.f32(t));
    }
  });
}

}  // namespace deepinfer::kernels::ref
