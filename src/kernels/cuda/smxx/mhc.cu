// One mHC site in two launches (model.md 3.1, 3.2).
//
//   spread   a block takes a few rows and 128 channels of all streams: unfolds the previous output, adds up the mixes'
//            products and squares over its channels, folds the next input. Its 24 + 2 sums go to the workspace.
//   finish   a block a row: adds the pieces, makes pre, post and comb, and beside that normalises the folded row.
//
// Sums: a thread's streams ascending, lanes by butterfly, warps ascending; pieces p, p + 8, ... ascending, then those
// eight.
#include <algorithm>

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kChannels = kSiteChannels;  // one a thread
constexpr int kSums = kSiteSums;
constexpr int kFinishThreads = 352;  // 8 warps add up pieces; with two vectors a thread 10 reach 5,120 channels

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

__device__ __forceinline__ float four_sum(float a, float b, float c, float d) {
  return (a + c) + (b + d);
}

// c[4 i + j] is element (i, j) of comb; a thread has all of it.
__device__ __forceinline__ void sinkhorn(float (&c)[kStreams * kStreams], int iters, float eps) {
  static_assert(kStreams == 4);
  auto divide_rows = [&] {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = four_sum(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]) + eps;
#pragma unroll
      for (int j = 0; j < 4; ++j) c[4 * i + j] = __fdividef(c[4 * i + j], sum);
    }
  };
  auto divide_columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float sum = four_sum(c[j], c[8 + j], c[4 + j], c[12 + j]) + eps;
#pragma unroll
      for (int i = 0; i < 4; ++i) c[4 * i + j] = __fdividef(c[4 * i + j], sum);
    }
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float top = fmaxf(fmaxf(c[4 * i], c[4 * i + 1]), fmaxf(c[4 * i + 2], c[4 * i + 3]));
#pragma unroll
    for (int j = 0; j < 4; ++j) c[4 * i + j] = expf(c[4 * i + j] - top);
    const float sum = four_sum(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[4 * i + j] = c[4 * i + j] / sum + eps;
  }
  divide_columns();
  for (int k = 1; k < iters; ++k) {
    divide_rows();
    divide_columns();
  }
}

// The mixes from the sums over all pieces, by one warp.
__device__ void make_mixes(const SiteArgs& f, int64_t t, const float* total) {
  const int lane = threadIdx.x % kWarp;
  const float mean = total[kMixes] / static_cast<float>(kStreams * f.d);
  const float inverse = 1.f / sqrtf(mean + f.rms_eps);
  auto mix = [&](int i, int which) { return total[i] * inverse * f.scale[which] + f.base[i]; };
  if (lane < kStreams) f.pre_out.row(t)[lane] = sigmoid(mix(lane, 0)) + f.hc_eps;
  if (lane < kStreams) f.post_out.row(t)[lane] = 2 * sigmoid(mix(kStreams + lane, 1));
  float c[kStreams * kStreams];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) c[i] = mix(2 * kStreams + i, 2);
  sinkhorn(c, f.iters, f.hc_eps);
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    if (lane == i) f.comb_out.row(t)[i] = c[i];
  }
}

// Warp 0 makes the mixes, the others the norm, whose inputs are on their way before the sums are known.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(SiteArgs f, int num_pieces) {
  begin_kernel();
  constexpr int kParts = 8, kNormThreads = kFinishThreads - kWarp, kVectors = 2;
  __shared__ float parts[kParts][kWarp], total[kWarp];
  const int64_t t = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint4 *folded = reinterpret_cast<const uint4*>(f.folded.row(t)), *gain = reinterpret_cast<const uint4*>(f.gain);
  const bool norms = f.gain != nullptr && warp > 0;
  const int num_vectors = static_cast<int>(f.d / 8), mine = static_cast<int>(threadIdx.x) - kWarp;
  uint4 values[kVectors], gains[kVectors];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = first + i * kNormThreads + mine;
      if (norms && at < num_vectors) values[i] = folded[at], gains[i] = gain[at];
    }
  };
  load(0);
  float part = 0;  // pieces warp, warp + 8, ...
  if (warp < kParts && lane < kSums) {
#pragma unroll 8
    for (int piece = warp; piece < num_pieces; piece += kParts) part += f.sums[(t * num_pieces + piece) * kSums + lane];
  }
  if (warp < kParts) parts[warp][lane] = part;
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kParts; ++w) sum += parts[w][lane];
    total[lane] = sum;
  }
  __syncthreads();
  if (f.fn != nullptr && warp == 0) make_mixes(f, t, total);
  if (!norms) return;
  const float inverse = 1.f / sqrtf(total[kMixes + 1] / static_cast<float>(f.d) + f.rms_eps);
  for (int first = 0; first < num_vectors; first += kVectors * kNormThreads) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = first + i * kNormThreads + mine;
      if (at >= num_vectors) break;
      const auto *v = reinterpret_cast<const Bf16*>(&values[i]), *g = reinterpret_cast<const Bf16*>(&gains[i]);
      __align__(16) Bf16 x[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = to_b(to_f(g[k]) * (to_f(v[k]) * inverse));
      reinterpret_cast<uint4*>(f.x.row(t))[at] = *reinterpret_cast<const uint4*>(x);
    }
  }
}

}  // namespace

void launch_site(cudaStream_t stream, const SiteArgs& a) {
  const int pieces = static_cast<int>(blocks_for(a.d, kChannels));
  // Enough blocks for the machine first, then as many rows as possible for one reading of the matrix.
  const int rows = std::max(1, std::min(64, a.num_rows * pieces / 1024));
  start("mhc", spread_kernel, dim3(pieces, static_cast<unsigned>(blocks_for(a.num_rows, rows))), kChannels, 0, stream,
        a, rows);
  if (a.fn == nullptr && a.gain == nullptr) return;
  start("mhc", finish_kernel, a.num_rows, kFinishThreads, 0, stream, a, pieces);
}

}  // namespace deepinfer::kernels::cuda
