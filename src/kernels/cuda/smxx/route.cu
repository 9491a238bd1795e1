// The router's choice (model.md 3.6): a warp a row, K rounds of the largest biased score, the lower expert first.
#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kRowsPerBlock = 4;
constexpr int kPerLane = 16, kMaxExperts = kPerLane * kWarp;
static_assert(kMaxExperts == kMaxRouted);
constexpr float kLowest = -3.4028235e38f;

__device__ float score_of(float logit, float temperature) {
  const float x = logit / temperature;
  return sqrtf(x > 20 ? x : log1pf(expf(x)));
}

__global__ void __launch_bounds__(kRowsPerBlock* kWarp) route_kernel(RouteArgs p) {
  begin_kernel();
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (t >= p.num_rows) return;
  const float* bias = p.is_image != nullptr && p.is_image[t] != 0 ? p.bias_image : p.bias;
  const float* logits = p.logits.row(t);
  float biased[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane;
    biased[i] = -INFINITY;  // below everything that takes part
    if (e >= p.num_experts) continue;
    biased[i] = score_of(logits[e], p.gate_temp) + bias[e];
    // A NaN loses against every number, but K experts must come out.
    if (!(biased[i] > kLowest)) biased[i] = kLowest;
  }
  int chosen[kMaxTopK];
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) chosen[k] = kMaxExperts;
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) {
    if (k >= p.top_k) break;
    float best = -INFINITY;
    int id = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (biased[i] > best) best = biased[i], id = i * kWarp + lane;
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, step);
      const int other_id = __shfl_xor_sync(0xffffffffu, id, step);
      if (other > best || (other == best && other_id < id)) best = other, id = other_id;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarp + lane == id) biased[i] = -INFINITY;
    }
    // Insert in ascending order.
    int v = id;
#pragma unroll
    for (int i = 0; i < kMaxTopK; ++i) {
      if (v < chosen[i]) {
        const int old = chosen[i];
        chosen[i] = v;
        v = old;
      }
    }
  }
  if (lane != 0) return;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) {
    if (k < p.top_k) sum += score_of(logits[chosen[k]], p.gate_temp);
  }
  const float divisor = p.top_k > 1 ? static_cast<float>(sum) + 1e-20f : 1.f;
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) {
    if (k >= p.top_k) break;
    p.ids.row(t)[k] = chosen[k];
    p.weights.row(t)[k] = score_of(logits[chosen[k]], p.gate_temp) / divisor * p.scale;
  }
}

}  // namespace

void launch_route(cudaStream_t stream, const RouteArgs& a) {
  const int blocks = (a.num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  start("route", route_kernel, blocks, kRowsPerBlock * kWarp, 0, stream, a);
}

}  // namespace deepinfer::kernels::cuda
