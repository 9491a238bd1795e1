// One mHC site in two launches (model.md 3.1, 3.2).
//
//   spread   a block takes 128 channels of all streams and rows, 8 at a time: unfolds the previous output, adds up the
//            mixes' products and squares over its channels, folds the next input. Its 24 + 2 sums go to the workspace.
//            The products run on tensor cores: streams are BF16, and three BF16 values hold all bits of an fp32 one.
//   finish   a block a row: adds the pieces, makes pre, post and comb, and beside that normalises the folded row.
//
// Sums: of the mixes, streams and their tensor core steps ascending in a warp; of the squares, a lane's streams and
// channels ascending, then quads by butterfly; warps ascending; pieces p, p + 8, ... ascending, then those eight.
#include <algorithm>

#include "kernels/cuda/smxx/mma.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kChannels = kSiteChannels;  // of a block, a quarter of them a warp
constexpr int kSums = kSiteSums;
constexpr int kFinishThreads = 352;  // 8 warps add up pieces; with two vectors a thread 10 reach 5,120 channels

// Rows that a block works on together: the columns of a tensor core operation.
constexpr int kRows = 8;
constexpr int kMostRows = 128;                // of a block, one after the other
constexpr int kRowsOfMixes = kMixes / kRows;  // of a lane
static_assert(kMixes == 24 && kStreams == 4 && kChannels == 4 * kWarp);

// A lane's 8 channels of one row: of each stream and of the output before.
struct RowPart {
  uint4 streams[kStreams], y;
};
__device__ __forceinline__ RowPart load_part(const SiteArgs& s, int64_t t, int64_t c) {
  RowPart p{};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) p.streams[j] = *reinterpret_cast<const uint4*>(s.streams.row(t) + j * s.d + c);
  if (s.y.data != nullptr) p.y = *reinterpret_cast<const uint4*>(s.y.row(t) + c);
  return p;
}

// Unfolds the output into the streams and stores them.
__device__ __forceinline__ void unfold(const SiteArgs& s, int64_t t, int64_t c, RowPart& p) {
  const auto* y = reinterpret_cast<const Bf16*>(&p.y);
  float post[kStreams], comb[kStreams * kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) post[j] = s.post.row(t)[j];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) comb[i] = s.comb.row(t)[i];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    float h[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) h[j] = to_f(reinterpret_cast<const Bf16*>(&p.streams[j])[k]);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float sum = post[j] * to_f(y[k]);
#pragma unroll
      for (int i = 0; i < kStreams; ++i) sum += comb[i * kStreams + j] * h[i];
      reinterpret_cast<Bf16*>(&p.streams[j])[k] = to_b(sum);
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) *reinterpret_cast<uint4*>(s.streams.row(t) + j * s.d + c) = p.streams[j];
}
// Stores the folded row; the sum of its squares.
__device__ __forceinline__ float fold(const SiteArgs& s, int64_t t, int64_t c, const RowPart& p) {
  __align__(16) Bf16 folded[8];
  float squares = 0, pre[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) pre[j] = s.pre_in.row(t)[j];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) sum += pre[j] * to_f(reinterpret_cast<const Bf16*>(&p.streams[j])[k]);
    folded[k] = to_b(sum);
    squares += to_f(folded[k]) * to_f(folded[k]);
  }
  *reinterpret_cast<uint4*>(s.folded.row(t) + c) = *reinterpret_cast<const uint4*>(folded);
  return squares;
}
__device__ __forceinline__ float squares_of(const RowPart& p) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float h = to_f(reinterpret_cast<const Bf16*>(&p.streams[j])[k]);
      squares += h * h;
    }
  }
  return squares;
}

// Takes the upper 8 bits of both mantissas away and returns them as two BF16 values.
__device__ __forceinline__ uint32_t take_bf16(float& low, float& high) {
  const uint32_t l = __float_as_uint(low), h = __float_as_uint(high);
  low -= __uint_as_float(l & 0xffff0000u);
  high -= __uint_as_float(h & 0xffff0000u);
  return __byte_perm(l, h, 0x7632);
}

// sums += the mixes' rows x 16 channels (4 neighbours of each lane) in three BF16 parts, exact, times the rows'
// channels. The small parts first and the addition apart, since tensor cores cut off what they add.
__device__ __forceinline__ void mix_step(float (&sums)[2][4], const float (&fn)[kRowsOfMixes][8], int first,
                                         const uint32_t* h) {
  constexpr int kParts = 3;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    uint32_t a[kParts][4] = {};
#pragma unroll
    for (int i = 2 * m; i < min(2 * m + 2, kRowsOfMixes); ++i) {
      float rest[4] = {fn[i][first], fn[i][first + 1], fn[i][first + 2], fn[i][first + 3]};
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        a[part][i % 2] = take_bf16(rest[0], rest[1]);
        a[part][i % 2 + 2] = take_bf16(rest[2], rest[3]);
      }
    }
    float c[4] = {};
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) mma(c, a[part], h[0], h[1]);
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[m][k] += c[k];
  }
}

// A warp has 32 channels of all streams, a lane 8 neighbours of them: of one row, and of three rows of the mixing
// matrix, which stay in registers while rows pass.
__global__ void __launch_bounds__(kChannels, 2) spread_kernel(SiteArgs s, int rows_per_block) {
  allow_next();
  __shared__ float scratch[2][kChannels / kWarp][kRows][kSums];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, q = lane % 4, r = lane / 4;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannels + kWarp * warp + 8 * q;
  const bool is_channel = c < s.d;
  float fn[kStreams][kRowsOfMixes][8] = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int i = 0; i < kRowsOfMixes; ++i) {
      if (s.fn == nullptr || !is_channel) continue;
      const auto* from = reinterpret_cast<const float4*>(s.fn + ((kRows * i + r) * kStreams + j) * s.d + c);
      reinterpret_cast<float4*>(fn[j][i])[0] = __ldg(from);
      reinterpret_cast<float4*>(fn[j][i])[1] = __ldg(from + 1);
    }
  }
  wait_for_previous();  // the matrix does not depend on what runs before
  const int first = static_cast<int>(blockIdx.y) * rows_per_block, end = min(s.num_rows, first + rows_per_block);
  auto part_of = [&](int t) { return is_channel && t < end ? load_part(s, t, c) : RowPart{}; };
  RowPart next = part_of(first + r);
  for (int begin = first; begin < end; begin += kRows) {
    const int t = begin + r;
    const bool exists = is_channel && t < end;
    RowPart p = next;
    next = part_of(t + kRows);
    float folded_squares = 0, sums[2][4] = {};
    if (exists && s.y.data != nullptr) unfold(s, t, c, p);
    if (exists && s.folded.data != nullptr) folded_squares = fold(s, t, c, p);
    const float squares = lane_sum<4>(squares_of(p));
    folded_squares = lane_sum<4>(folded_squares);
    if (s.fn != nullptr) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const auto* h = reinterpret_cast<const uint32_t*>(&p.streams[j]);
        mix_step(sums, fn[j], 0, h);
        mix_step(sums, fn[j], 4, h + 2);
      }
    }
    float (*place)[kRows][kSums] = scratch[(begin - first) / kRows % 2];
#pragma unroll
    for (int i = 0; i < kRowsOfMixes; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) place[warp][2 * q + k][kRows * i + r] = sums[i / 2][i % 2 * 2 + k];
    }
    if (q == 0) place[warp][r][kMixes] = squares, place[warp][r][kMixes + 1] = folded_squares;
    __syncthreads();
    for (int i = threadIdx.x; i < min(kRows, end - begin) * kSums; i += kChannels) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kChannels / kWarp; ++w) sum += place[w][i / kSums][i % kSums];
      s.sums[(static_cast<int64_t>(begin + i / kSums) * gridDim.x + blockIdx.x) * kSums + i % kSums] = sum;
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
  const int rows = static_cast<int>(blocks_for(std::clamp(a.num_rows * pieces / 1024, 1, kMostRows), kRows)) * kRows;
  start("mhc", spread_kernel, dim3(pieces, static_cast<unsigned>(blocks_for(a.num_rows, rows))), kChannels, 0, stream,
        a, rows);
  if (a.fn == nullptr && a.gain == nullptr) return;
  start("mhc", finish_kernel, a.num_rows, kFinishThreads, 0, stream, a, pieces);
}

}  // namespace deepinfer::kernels::cuda
