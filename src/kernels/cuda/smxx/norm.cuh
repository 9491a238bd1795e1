// RMS norm of one row by one block.
#pragma once

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {

// `scratch` holds one float a warp. What fits the registers is read once, and gains beside it.
template <int kThreads>
__device__ __forceinline__ void norm_row(const NormArgs& a, int64_t row, float* scratch) {
  constexpr int kHeld = 8;
  const Bf16* in = a.x.row(row);
  Bf16* out = a.y.row(row);
  Bf16 held[kHeld], gains[kHeld];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t c = threadIdx.x + i * kThreads;
    if (c >= a.n) break;
    held[i] = in[c];
    gains[i] = a.gain[c];
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (threadIdx.x + i * kThreads < a.n) sum += to_f(held[i]) * to_f(held[i]);
  }
  for (int64_t c = threadIdx.x + kHeld * kThreads; c < a.n; c += kThreads) sum += to_f(in[c]) * to_f(in[c]);
  const float mean = block_sum<kThreads>(sum, scratch) / static_cast<float>(a.n);
  const float inverse = 1.f / sqrtf(mean + a.eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t c = threadIdx.x + i * kThreads;
    if (c < a.n) out[c] = to_b(to_f(gains[i]) * (to_f(held[i]) * inverse));
  }
  for (int64_t c = threadIdx.x + kHeld * kThreads; c < a.n; c += kThreads)
    out[c] = to_b(to_f(a.gain[c]) * (to_f(in[c]) * inverse));
}

}  // namespace deepinfer::kernels::cuda
