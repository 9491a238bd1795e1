// The router's choice of one row (model.md 3.6) by one warp: K rounds of the largest biased score, the lower expert
// first.
#pragma once

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {

constexpr int kRoutedPerLane = kMaxRouted / kWarp;

__device__ __forceinline__ float score_of(float logit, float temperature) {
  const float x = logit / temperature;
  return sqrtf(x > 20 ? x : log1pf(expf(x)));
}

// Larger floats have larger words.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t u = __float_as_uint(v + 0.f);  // no -0
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// What the lanes of a warp tell each other.
struct RoutePlaces {
  int ids[kMaxTopK];
  float scores[kMaxTopK];
};

__device__ __forceinline__ void route_row(const RouteArgs& p, int64_t t, RoutePlaces& places) {
  constexpr float kLowest = -3.4028235e38f;
  constexpr int kPerLane = kRoutedPerLane, kMaxExperts = kMaxRouted;
  const int lane = threadIdx.x % kWarp;
  const float* bias = p.is_image != nullptr && p.is_image[t] != 0 ? p.bias_image : p.bias;
  const float* logits = p.logits.row(t);
  float score[kPerLane];
  uint32_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane;
    key[i] = 0;  // below everything that takes part
    if (i * kWarp >= p.num_experts || e >= p.num_experts) continue;
    score[i] = score_of(logits[e], p.gate_temp);
    const float biased = score[i] + bias[e];
    // A NaN loses against every number, but K experts must come out.
    key[i] = ordered(biased > kLowest ? biased : kLowest);
  }
  int my_id = 0;  // lane k has the choice of round k
  float my_score = 0;
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, key[i]);
    best = __reduce_max_sync(0xffffffffu, best);
    int id = kMaxExperts;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (key[i] == best) id = i * kWarp + lane;
    }
    id = static_cast<int>(__reduce_min_sync(0xffffffffu, static_cast<unsigned>(id)));
    float its_score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarp + lane == id) key[i] = 0, its_score = score[i];
    }
    its_score = __shfl_sync(0xffffffffu, its_score, id % kWarp);
    if (lane == k) my_id = id, my_score = its_score;
  }
  int place = 0;  // among the ids ascending
  for (int k = 0; k < p.top_k; ++k) place += __shfl_sync(0xffffffffu, my_id, k) < my_id;
  if (lane < p.top_k) places.ids[place] = my_id, places.scores[place] = my_score;
  __syncwarp();
  double sum = 0;
  for (int k = 0; k < p.top_k; ++k) sum += places.scores[k];
  const float divisor = p.top_k > 1 ? static_cast<float>(sum) + 1e-20f : 1.f;
  if (lane >= p.top_k) return;
  p.ids.row(t)[lane] = places.ids[lane];
  p.weights.row(t)[lane] = places.scores[lane] / divisor * p.scale;
}

}  // namespace deepinfer::kernels::cuda
