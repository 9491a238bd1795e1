// One mHC site in two launches (model.md 3.1, 3.2).
//
//   spread   a block takes a few rows and 128 channels of all streams: unfolds the previous output, adds up the mixes'
//            products and squares over its channels, folds the next input. Its 24 + 2 sums go to the workspace.
//   finish   a block a row: adds the pieces, makes pre, post and comb, and normalises the folded row.
//
// Sums: a thread's streams ascending, lanes by butterfly, warps ascending; pieces p, p + 8, ... ascending, then those
// eight.
#include <algorithm>

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kChannels = kSiteChannels;  // one a thread
constexpr int kSums = kSiteSums;
constexpr int kFinishThreads = 256;

// Lane l gets the sum over all lanes of v[l]. Halves by recursion: every index is a constant, so v stays in registers.
template <int kHalf>
__device__ __forceinline__ float sum_by_lane(const float (&v)[2 * kHalf]) {
  const bool is_high = (threadIdx.x & kHalf) != 0;
  float half[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = is_high ? v[i] : v[i + kHalf], kept = is_high ? v[i + kHalf] : v[i];
    half[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kHalf);
  }
  if constexpr (kHalf == 1) {
    return half[0];
  } else {
    return sum_by_lane<kHalf / 2>(half);
  }
}

// The mixing matrix's part of the block stays in registers while rows pass.
__global__ void __launch_bounds__(kChannels) spread_kernel(SiteArgs s, int rows_per_block) {
  allow_next();
  __shared__ float scratch[2][kChannels / kWarp][kWarp];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannels + threadIdx.x;
  const bool is_channel = c < s.d;
  float fn[kMixes][kStreams];
#pragma unroll
  for (int i = 0; i < kMixes; ++i) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      fn[i][j] = s.fn != nullptr && is_channel ? __ldg(s.fn + (i * kStreams + j) * s.d + c) : 0.f;
  }
  wait_for_previous();  // the matrix does not depend on what runs before
  const int first = static_cast<int>(blockIdx.y) * rows_per_block, end = min(s.num_rows, first + rows_per_block);
  float next_h[kStreams] = {}, next_y = 0;
  auto load = [&](int t) {
    if (!is_channel || t >= end) return;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) next_h[j] = to_f(s.streams.row(t)[j * s.d + c]);
    if (s.y.data != nullptr) next_y = to_f(s.y.row(t)[c]);
  };
  load(first);
  for (int t = first; t < end; ++t) {
    float h[kStreams] = {}, sums[kWarp] = {};
    const float y = next_y;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) h[j] = next_h[j];
    load(t + 1);
    if (is_channel) {
      Bf16* streams = s.streams.row(t);
      if (s.y.data != nullptr) {
        const float *post = s.post.row(t), *comb = s.comb.row(t);
        float next[kStreams];
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          float sum = post[j] * y;
#pragma unroll
          for (int i = 0; i < kStreams; ++i) sum += comb[i * kStreams + j] * h[i];
          next[j] = round_b(sum);
        }
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          h[j] = next[j];
          streams[j * s.d + c] = to_b(next[j]);
        }
      }
      if (s.folded.data != nullptr) {
        const float* pre = s.pre_in.row(t);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sum += pre[j] * h[j];
        const float folded = round_b(sum);
        s.folded.row(t)[c] = to_b(folded);
        sums[kMixes + 1] = folded * folded;
      }
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sums[kMixes] += h[j] * h[j];
#pragma unroll
      for (int i = 0; i < kMixes; ++i) {
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sums[i] += fn[i][j] * h[j];
      }
    }
    float (*place)[kWarp] = scratch[(t - first) % 2];
    place[threadIdx.x / kWarp][threadIdx.x % kWarp] = sum_by_lane<kWarp / 2>(sums);
    __syncthreads();
    if (threadIdx.x < kSums) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kChannels / kWarp; ++w) sum += place[w][threadIdx.x];
      s.sums[(static_cast<int64_t>(t) * gridDim.x + blockIdx.x) * kSums + threadIdx.x] = sum;
    }
  }
}

__device__ float sigmoid(float x) {
  return 1.f / (1.f + expf(-x));
}

// Element (i, j) of comb in lanes 4 i + j and 16 + 4 i + j.
__device__ float sinkhorn(float c, int iters, float eps) {
  auto row_sum = [](float v) { return lane_sum<4>(v); };
  auto column_sum = [](float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
  };
  const float e = expf(c - lane_max<4>(c));
  c = e / row_sum(e) + eps;
  c = __fdividef(c, column_sum(c) + eps);
  for (int k = 1; k < iters; ++k) {
    c = __fdividef(c, row_sum(c) + eps);
    c = __fdividef(c, column_sum(c) + eps);
  }
  return c;
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(SiteArgs f, int num_pieces) {
  begin_kernel();
  __shared__ float parts[kFinishThreads / kWarp][kWarp], total[kWarp];
  const int64_t t = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float part = 0;  // pieces warp, warp + 8, ...
  if (lane < kSums) {
    for (int piece = warp; piece < num_pieces; piece += kFinishThreads / kWarp)
      part += f.sums[(t * num_pieces + piece) * kSums + lane];
  }
  parts[warp][lane] = part;
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kFinishThreads / kWarp; ++w) sum += parts[w][lane];
    total[lane] = sum;
  }
  __syncthreads();
  if (f.fn != nullptr && warp == 0) {
    const float mean = total[kMixes] / static_cast<float>(kStreams * f.d);
    const float inverse = 1.f / sqrtf(mean + f.rms_eps);
    auto mix = [&](int i, int which) { return total[i] * inverse * f.scale[which] + f.base[i]; };
    if (lane < kStreams) f.pre_out.row(t)[lane] = sigmoid(mix(lane, 0)) + f.hc_eps;
    if (lane < kStreams) f.post_out.row(t)[lane] = 2 * sigmoid(mix(kStreams + lane, 1));
    const float c = sinkhorn(mix(2 * kStreams + lane % 16, 2), f.iters, f.hc_eps);
    if (lane < kStreams * kStreams) f.comb_out.row(t)[lane] = c;
  }
  if (f.gain == nullptr) return;
  const float inverse = 1.f / sqrtf(total[kMixes + 1] / static_cast<float>(f.d) + f.rms_eps);
  const Bf16* folded = f.folded.row(t);
  Bf16* x = f.x.row(t);
  for (int64_t c = threadIdx.x; c < f.d; c += kFinishThreads)
    x[c] = to_b(to_f(f.gain[c]) * (to_f(folded[c]) * inverse));
}

}  // namespace

void launch_site(cudaStream_t stream, const SiteArgs& a) {
  const int pieces = static_cast<int>(blocks_for(a.d, kChannels));
  // Enough blocks for the machine first, then as many rows as possible for one reading of the matrix.
  const int rows = std::max(1, std::min(16, a.num_rows * pieces / 1024));
  start("mhc", spread_kernel, dim3(pieces, static_cast<unsigned>(blocks_for(a.num_rows, rows))), kChannels, 0, stream,
        a, rows);
  if (a.fn == nullptr && a.gain == nullptr) return;
  start("mhc", finish_kernel, a.num_rows, kFinishThreads, 0, stream, a, pieces);
}

}  // namespace deepinfer::kernels::cuda
