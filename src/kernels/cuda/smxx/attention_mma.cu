// Attention of the released widths (512 channels, heads by 16) on tensor cores, softmax with a running maximum.
// attention_few.cu has the same results for a few rows.
//
//   A block takes a row and 16 or 64 heads and goes through the row's keys 64 at a time:
//     records of later keys come in asynchronously; those of a step are expanded to BF16 in shared memory,
//     scores = Q K, probabilities, sum += P K. Keys are values as well, so one tile serves both products.
//   With 64 heads on Hopper warpgroups multiply, which gives the same bits. With 16 heads there is room for two tiles,
//   and the next is expanded beside the probabilities of this one.
//
//   The running maximum is a power of two, so that rescaling a sum by it is exact: a sum is one chain over the keys in
//   order, whatever the blocks were, and 16 or 64 heads a block give equal bits. The denominator adds 4 keys, 16 such
//   sums by butterfly, steps ascending.
#include "kernels/cuda/sm90/warpgroup.cuh"
#include "kernels/cuda/smxx/attention_tiles.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kDim = kFastAttentionDim, kPairs = 32, kThreads = 256, kWarps = 8;
constexpr int kKeys = 64;                  // of a step
constexpr int kRecord = kDim + kDim / 32;  // bytes of a window record, the larger kind
constexpr int kRowBytes = 2 * kDim;        // of a BF16 row
constexpr int kScoreStride = kKeys + 4;    // floats
constexpr int kProbabilityBytes = 2 * kKeys + 16;

struct Layout {
  int q, k, raw, scores, probabilities, factors, totals, keys, bytes;
  __host__ __device__ constexpr explicit Layout(int heads)
      : q(0),
        k(q + heads * kRowBytes),
        raw(k + (heads == 16 ? 2 : 1) * kKeys * kRowBytes),
        scores(raw + 2 * kKeys * kRecord),
        probabilities(scores + heads * kScoreStride * 4),
        factors(probabilities + heads * kProbabilityBytes),
        totals(factors + heads * 4),
        keys(totals + heads * 4),
        bytes(keys + kFastAttentionKeys * 8) {}
};
constexpr int kAlignment = 1024;
static_assert(Layout(64).bytes + kAlignment <= 227 << 10);

// Piece c of row r of a tile of kRows rows: slabs of 64 channels, rows of 128 bytes in which pieces are exchanged for
// the banks. So warpgroup products take both sides of the scores, and the keys turned.
template <int kRows>
__device__ __forceinline__ int slab_at(int r, int c) {
  return c / 8 * (kRows * 128) + r * 128 + ((c ^ r) % 8 << 4);
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasWarpgroups = true;
#else
constexpr bool kHasWarpgroups = false;
#endif

// The two products of a step by a warpgroup: 64 heads x 32 keys x 512 channels in two chains, and 64 heads x 256
// channels x 64 keys.
__device__ __forceinline__ void score_products(float (&c)[2][4][4], uint32_t queries, uint32_t keys) {
  begin_products();
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d)
    warpgroup_mma(c[d % 2], matrix_at(queries + d / 4 * (64 * 128)) + d % 4 * 2,
                  matrix_at(keys + d / 4 * (kKeys * 128)) + d % 4 * 2);
  commit_products();
  wait_products<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) keep_in_place(c[i]);
}
__device__ __forceinline__ void sum_products(float (&sum)[32][4], uint32_t probabilities, uint32_t values) {
  uint32_t a[kKeys / 16][4];
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) load_matrices(a[k], probabilities + 32 * k);
  begin_products();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
    warpgroup_mma_turned(sum, a[k], turned_matrix_at(values + 16 * k * 128, kKeys * 128));
  commit_products();
  wait_products<0>();
  keep_in_place(sum);
}

template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) attention_mma_kernel(AttentionArgs p) {
  begin_kernel();
  extern __shared__ uint8_t unaligned[];
  uint8_t* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & (kAlignment - 1));
  constexpr Layout at(kHeads);
  constexpr int kTiles = kHeads / 16, kSides = kWarps / kTiles;  // warps that share a tile of 16 heads
  const int64_t t = blockIdx.x;
  const int first_head = blockIdx.y * kHeads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = warp % kTiles * 16, side = warp / kTiles;
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const RowKeys keys(p, t);
  const int num_steps = (keys.count + kKeys - 1) / kKeys;
  auto* addresses = reinterpret_cast<const uint8_t**>(shared + at.keys);
  float* scores = reinterpret_cast<float*>(shared + at.scores);
  float* factors = reinterpret_cast<float*>(shared + at.factors);
  float* totals = reinterpret_cast<float*>(shared + at.totals);

  for (int k = threadIdx.x; k < keys.count; k += kThreads)
    addresses[k] = k < keys.num_window ? keys.window_key(k) : keys.entry(k);
  __syncthreads();

  // Eight threads a key copy its record, 16 bytes at a time.
  auto copy_records = [&](int step) {
    for (int k = threadIdx.x / 8; k < kKeys; k += kThreads / 8) {
      const int key = step * kKeys + k;
      if (key >= keys.count) break;
      const uint8_t* from = addresses[key];
      const int pieces = key < keys.num_window ? kRecord / 16 : (kDim / 2 + kDim / 16) / 16;
      const uint32_t to = base + at.raw + (step % 2 * kKeys + k) * kRecord;
      for (int c = threadIdx.x % 8; c < pieces; c += 8) copy_async(to + 16 * c, from + 16 * c);
    }
    commit_copies();
  };
  constexpr bool kHasTwoTiles = kHeads == 16;
  if (num_steps > 0) copy_records(0);
  if constexpr (kHasTwoTiles) copy_records(1);

  load_queries<kHeads>(p, t, first_head, shared + at.q, slab_at<kHeads>);

  constexpr int kDimsOfWarp = kDim / kSides, kColumns = kDimsOfWarp / 8;
  float sum[kColumns][4] = {};
  constexpr bool kByWarpgroup = kHeads == 64 && kHasWarpgroups;  // a side is one
  // Of the thread's head.
  float top = -1e30f, denominator = 0;  // top: exponent of the running maximum, an integer
  const float exponent_scale = p.scale * 1.44269504f * kFreed;

  // Eight threads a key, those that copied it; pieces of 8 channels.
  auto expand_keys = [&](int step) {
    uint8_t* tile = shared + at.k + (kHasTwoTiles ? step % 2 : 0) * kKeys * kRowBytes;
    for (int k = threadIdx.x / 8; k < kKeys; k += kThreads / 8) {
      const int key = step * kKeys + k;
      const uint8_t* raw = shared + at.raw + (step % 2 * kKeys + k) * kRecord;
      if (key < keys.num_window) {
#pragma unroll
        for (int c = threadIdx.x % 8; c < kDim / 8; c += 8) {
          const uint2 w = *reinterpret_cast<const uint2*>(raw + 8 * c);
          *reinterpret_cast<uint4*>(tile + slab_at<kKeys>(k, c)) =
              expand_e4m3(w.x, w.y, window_factor(raw[kDim + c / 4]));
        }
      } else if (key < keys.count) {
#pragma unroll
        for (int c = threadIdx.x % 8; c < kDim / 8; c += 8) {
          *reinterpret_cast<uint4*>(tile + slab_at<kKeys>(k, c)) =
              expand_e2m1(*reinterpret_cast<const uint32_t*>(raw + 4 * c), entry_factor(raw[kDim / 2 + c / 2]));
        }
      } else {
        for (int c = threadIdx.x % 8; c < kDim / 8; c += 8) *reinterpret_cast<uint4*>(tile + slab_at<kKeys>(k, c)) = {};
      }
    }
  };
  if (kHasTwoTiles && num_steps > 0) {
    wait_copies<1>();
    __syncwarp();
    expand_keys(0);
    __syncwarp();
    copy_records(2);
    __syncthreads();
  }
  // 16 heads: the queries stay in registers.
  constexpr int kKept = kHasTwoTiles ? kDim / 16 : 1;
  uint32_t queries[kKept][4];
  if constexpr (kHasTwoTiles) {
#pragma unroll
    for (int d = 0; d < kKept; ++d)
      load_matrices(queries[d], base + at.q + slab_at<kHeads>(lane % 16, 2 * d + lane / 16));
  }

  for (int step = 0; step < num_steps; ++step) {
    if constexpr (!kHasTwoTiles) {
      if (step + 1 < num_steps) {
        copy_records(step + 1);
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncwarp();
      expand_keys(step);
      if constexpr (kByWarpgroup) publish_to_products();
      __syncthreads();
    }
    const uint32_t tile_at = base + at.k + (kHasTwoTiles ? step % 2 : 0) * kKeys * kRowBytes;

    {  // scores: 16 heads x kKeys / kSides keys a warp
      constexpr int kKeysOfWarp = kKeys / kSides, kTilesOfWarp = kKeysOfWarp / 8;
      float c[2][kTilesOfWarp][4] = {};  // two chains: steps of 16 channels 0, 2, 4 .. and 1, 3, 5 ..
      const int key0 = side * kKeysOfWarp;
      const uint32_t q_at = base + at.q;
      if constexpr (kByWarpgroup) score_products(c, q_at, tile_at + key0 * 128);
#pragma unroll(kHasTwoTiles ? kDim / 32 : 4)
      for (int d = 0; d < (kByWarpgroup ? 0 : kDim / 16); d += 2) {
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (kHasTwoTiles) {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][j] = queries[d + i][j];
          } else {
            load_matrices(a[i], q_at + slab_at<kHeads>(head + lane % 16, 2 * (d + i) + lane / 16));
          }
        }
#pragma unroll
        for (int n = 0; n < kTilesOfWarp; ++n) {  // 8 keys x 32 channels
          uint32_t b[4];
          load_matrices(b, tile_at + slab_at<kKeys>(key0 + 8 * n + lane % 8, 2 * d + lane / 8));
          mma(c[0][n], a[0], b[0], b[1]);
          mma(c[1][n], a[1], b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < kTilesOfWarp; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* to = scores + (head + lane / 4 + 8 * i) * kScoreStride + key0 + 8 * n + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) = {c[0][n][2 * i] + c[1][n][2 * i], c[0][n][2 * i + 1] + c[1][n][2 * i + 1]};
        }
      }
    }
    __syncthreads();

    {  // probabilities: a head is shared by 4 or 16 threads, each with 4 or 1 of its sixteen fours of keys
      constexpr int kThreadsOfHead = kThreads / kHeads, kFours = 16 / kThreadsOfHead;
      const int h = threadIdx.x / kThreadsOfHead, part = threadIdx.x % kThreadsOfHead, left = keys.count - step * kKeys;
      float s[kFours][4];
      float largest = -1e30f;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int k = 4 * (kThreadsOfHead * i + part);
        const float4 v = *reinterpret_cast<const float4*>(scores + h * kScoreStride + k);
        s[i][0] = v.x, s[i][1] = v.y, s[i][2] = v.z, s[i][3] = v.w;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] = k + j < left ? s[i][j] * exponent_scale : -INFINITY;
          largest = fmaxf(largest, s[i][j]);
        }
      }
      largest = lane_max<kThreadsOfHead>(largest);
      const float next = fmaxf(top, ceilf(largest));
      // 2^(top - next), exactly: both are integers.
      const float factor = power_of_two(fmaxf(top - next, -126.f));
      top = next;
      float fours[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        float e[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) e[j] = exp2f(s[i][j] - top);
        fours[i] = ((e[0] + e[1]) + e[2]) + e[3];
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(e[0], e[1]), __floats2bfloat162_rn(e[2], e[3])};
        *reinterpret_cast<uint2*>(shared + at.probabilities + h * kProbabilityBytes + 8 * (kThreadsOfHead * i + part)) =
            *reinterpret_cast<uint2*>(pair);
      }
      // Fours f and f + 4, then f and f + 8, then neighbours: the same tree for both shares.
      float all = fours[0];
      if constexpr (kFours == 4) {
        all = (fours[0] + fours[1]) + (fours[2] + fours[3]);
      } else {
        all += __shfl_xor_sync(0xffffffffu, all, 4);
        all += __shfl_xor_sync(0xffffffffu, all, 8);
      }
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      denominator = denominator * factor + all;
      if (part == 0) factors[h] = factor;
    }
    if constexpr (kHasTwoTiles) {
      wait_copies<1>();
      __syncwarp();
      if (step + 1 < num_steps) expand_keys(step + 1);
      __syncwarp();
      copy_records(step + 3);
    }
    __syncthreads();

    {  // sum += P K: 16 heads x kDimsOfWarp channels a warp
      const float low = factors[head + lane / 4], high = factors[head + lane / 4 + 8];
      if (!__all_sync(0xffffffffu, low == 1.f && high == 1.f)) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          sum[n][0] *= low, sum[n][1] *= low;
          sum[n][2] *= high, sum[n][3] *= high;
        }
      }
      const uint32_t p_at = base + at.probabilities + (head + lane % 16) * kProbabilityBytes + lane / 16 * 16;
      if constexpr (kByWarpgroup) sum_products(sum, p_at, tile_at + side * (kDimsOfWarp / 64) * (kKeys * 128));
#pragma unroll
      for (int k = 0; k < (kByWarpgroup ? 0 : kKeys / 16); ++k) {
        uint32_t a[4];
        load_matrices(a, p_at + 32 * k);
#pragma unroll
        for (int n = 0; n < kColumns; n += 2) {  // 16 keys x 16 channels
          uint32_t b[4];
          load_matrices_turned(b, tile_at + slab_at<kKeys>(16 * k + lane % 16, side * kColumns + n + lane / 16));
          mma(sum[n], a, b[0], b[1]);
          mma(sum[n + 1], a, b[2], b[3]);
        }
      }
    }
    if constexpr (!kHasTwoTiles) __syncthreads();
  }
  wait_copies<0>();

  if (threadIdx.x % (kThreads / kHeads) == 0) {
    const int h = threadIdx.x / (kThreads / kHeads);
    totals[h] = denominator + exp2f(fminf(p.sink[first_head + h] * 1.44269504f - top, 126.f));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int h = head + lane / 4 + 8 * i;
    const float inverse = kFreed / totals[h];
    Bf16* out = p.out.row(t) + (first_head + h) * kDim;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = side * kDimsOfWarp + 8 * n + lane % 4 * 2, pair = c / 2 - (kDim / 2 - kPairs);
      float a = round_b(sum[n][2 * i] * inverse), b = round_b(sum[n][2 * i + 1] * inverse);
      if (pair >= 0) turn(a, b, p.cos.row(t)[pair], -p.sin.row(t)[pair]);
      *reinterpret_cast<__nv_bfloat162*>(out + c) = __floats2bfloat162_rn(a, b);
    }
  }
}

template <int kHeads>
void launch(cudaStream_t stream, const AttentionArgs& a) {
  constexpr int kBytes = Layout(kHeads).bytes + kAlignment;
  static const cudaError_t status =
      cudaFuncSetAttribute(attention_mma_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  deepinfer::cuda::check(status, "attention");
  start("attention", attention_mma_kernel<kHeads>, dim3(a.num_rows, a.heads / kHeads), kThreads, kBytes, stream, a);
}

}  // namespace

bool fits_fast_attention(const AttentionArgs& a) {
  return a.dim == kDim && a.pairs == kPairs && a.heads % 16 == 0 && a.max_keys <= kFastAttentionKeys &&
         reinterpret_cast<uintptr_t>(a.q.data) % 16 == 0 && a.q.stride % 8 == 0 && a.out.stride % 2 == 0;
}

void launch_fast_attention(cudaStream_t stream, const AttentionArgs& a) {
  constexpr int kFewRows = 8;  // that fill the machine with a cluster each
  if (a.num_rows <= kFewRows) return launch_few_attention(stream, a);
  // More blocks, each expanding all keys, are faster than one until there is a row for half of the multiprocessors.
  if (a.heads % 64 == 0 && a.num_rows > 60) {
    launch<64>(stream, a);
  } else {
    launch<16>(stream, a);
  }
}

}  // namespace deepinfer::kernels::cuda
