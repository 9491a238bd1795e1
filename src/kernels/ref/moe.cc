// Routing and experts (model.md 3.6).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ref/product.h"
#include "kernels/ref/ref_ops.h"
#include "kernels/ref/top_k.h"

namespace deepinfer::kernels::ref {
namespace {

float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}
float silu(float x) {
  return x / (1.f + std::exp(-x));
}

}  // namespace

void RefOps::route(Stream& stream, const RouteParams& p) {
  const int64_t num_experts = p.logits.cols;
  pool_of(stream).split(p.logits.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> score(static_cast<size_t>(num_experts)), biased(static_cast<size_t>(num_experts));
    for (int64_t t = begin; t < end; ++t) {
      const float* bias = p.is_image != nullptr && p.is_image[t] != 0 ? p.bias_image : p.bias;
      for (int64_t e = 0; e < num_experts; ++e) {
        score[e] = std::sqrt(softplus(p.logits.f32(t)[e] / p.gate_temp));
        biased[e] = score[e] + bias[e];
        // A NaN loses against every number, but K experts must come out.
        if (!(biased[e] > std::numeric_limits<float>::lowest())) biased[e] = std::numeric_limits<float>::lowest();
      }
      const std::vector<int32_t> ids = top_k_indices(biased, p.top_k);
      double sum = 0;
      for (int32_t e : ids) sum += score[e];
      const float divisor = p.top_k > 1 ? static_cast<float>(sum) + 1e-20f : 1.f;
      for (size_t k = 0; k < ids.size(); ++k) {
        p.ids.row<int32_t>(t)[k] = ids[k];
        p.weights.f32(t)[k] = score[ids[k]] / divisor * p.scale;
      }
    }
  });
}

float RefOps::swiglu_value(float gate, float up, float limit) const {
  if (limit > 0) {
    gate = std::min(gate, limit);
    up = std::clamp(up, -limit, limit);
  }
  return silu(gate) * up;
}

Matrix RefOps::expert(ThreadPool& threads, const ExpertWeights& w, const TensorView& x, const float* weights,
                      float limit) const {
  Matrix gate(x.rows, w.w1.rows), up(x.rows, w.w3.rows), y(x.rows, w.w2.rows);
  product(threads, x, w.w1, 0, w.w1.rows, [&](int64_t t, int64_t i, float sum) { gate.row(t)[i] = r(sum); });
  product(threads, x, w.w3, 0, w.w3.rows, [&](int64_t t, int64_t i, float sum) { up.row(t)[i] = r(sum); });
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const float a = swiglu_value(gate.row(t)[i], up.row(t)[i], limit);
      gate.row(t)[i] = r(weights != nullptr ? weights[t] * a : a);
    }
  }
  Matrix a = act_input(threads, gate.view());
  product(threads, a.view(), w.w2, 0, w.w2.rows, [&](int64_t t, int64_t i, float sum) { y.row(t)[i] = r(sum); });
  return y;
}

void RefOps::moe(Stream& stream, const MoeParams& p) {
  ThreadPool& threads = pool_of(stream);
  const int64_t num_rows = p.x.rows, d = p.x.cols, top_k = p.ids.cols;
  Matrix x = act_input(threads, p.x), z(num_rows, d);
  for (int64_t t = 0; t < num_rows && !p.slots.empty(); ++t) std::fill_n(p.slots.f32(t), top_k * d, 0.f);

  for (size_t e = 0; e < p.experts.size(); ++e) {  // ascending, so that every row adds its experts in this order
    std::vector<int64_t> rows, slots;
    std::vector<float> weights;
    for (int64_t t = 0; t < num_rows; ++t) {
      for (int64_t k = 0; k < top_k; ++k) {
        if (p.ids.row<int32_t>(t)[k] != p.expert_begin + static_cast<int32_t>(e)) continue;
        rows.push_back(t);
        slots.push_back(k);
        weights.push_back(p.weights.f32(t)[k]);
      }
    }
    if (rows.empty()) continue;
    Matrix chosen(static_cast<int64_t>(rows.size()), d);
    for (size_t i = 0; i < rows.size(); ++i) std::copy_n(x.row(rows[i]), d, chosen.row(static_cast<int64_t>(i)));
    Matrix y = expert(threads, p.experts[e], chosen.view(), weights.data(), p.limit);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* from = y.row(static_cast<int64_t>(i));
      if (!p.slots.empty()) std::copy_n(from, d, p.slots.f32(rows[i]) + slots[i] * d);
      for (int64_t c = 0; c < d; ++c) z.row(rows[i])[c] += from[c];
    }
  }
  if (!p.slots.empty()) return;
  if (p.shared != nullptr) {
    Matrix y = expert(threads, *p.shared, x.view(), nullptr, p.limit);
    for (int64_t i = 0; i < num_rows * d; ++i) z.values[i] += y.values[i];
  }
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t c = 0; c < d; ++c) p.z.f32(t)[c] = r(z.row(t)[c]);
  }
}

void RefOps::combine(Stream& stream, const CombineParams& p) {
  const int64_t d = p.z.cols;
  pool_of(stream).split(p.z.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < d; ++c) {
        float sum = 0;
        for (int k = 0; k < p.top_k; ++k) sum += p.slots.f32(t)[k * d + c];
        p.z.f32(t)[c] = r(sum + p.shared.f32(t)[c]);
      }
    }
  });
}

void RefOps::swiglu(Stream& stream, const SwigluParams& p) {
  pool_of(stream).split(p.a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < p.a.cols; ++c) p.a.f32(t)[c] = r(swiglu_value(p.gate.f32(t)[c], p.up.f32(t)[c], p.limit));
    }
  });
}

}  // namespace deepinfer::kernels::ref
