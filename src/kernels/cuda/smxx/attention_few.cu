// Attention of the released widths for few rows: a cluster of 8 blocks takes a row and 16 or 64 heads. Bit for bit the
// results of attention_mma.cu.
//
//   scores   block r has an eighth of the row's keys, all 512 channels; it keeps the scores and the largest of every 8
//   weights  from the largest of all blocks each knows the running maximum of every 64 keys, as the kernel for many
//            rows meets it, and makes the probabilities of its own keys
//   sums     block r has 64 channels of all keys and collects the probabilities of all blocks
//
// So a key is expanded twice, channels of a score and keys of a sum are added in the same order as there, and the work
// of a row is spread over 8 or 32 blocks. A thread expands one piece of 64 channels each time, and what a block reads
// of the caches it asks for at the start.
#include "kernels/cuda/smxx/attention_tiles.cuh"
#include "kernels/cuda/smxx/cluster.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kDim = kFastAttentionDim, kPairs = 32;
constexpr int kBlocks = 8, kGroupHeads = 16;  // heads of a tensor core operation
constexpr int kMostKeys = kFastAttentionKeys, kMostSteps = kMostKeys / 64, kMostShare = kMostKeys / kBlocks;
constexpr int kMostTiles = kMostShare / 8;
constexpr int kSlice = kDim / kBlocks;  // channels of a block
constexpr int kThreads = kMostKeys;     // one slice of a key each, for the scores and for the sums
constexpr int kWarps = kThreads / kWarp, kSumWarps = kSlice / 8;
constexpr int kLanes = 16;                      // threads of a head
constexpr int kScoreStride = kMostShare + 4;    // floats
constexpr int kWeightRow = 2 * kMostKeys + 16;  // bytes of a head's probabilities
constexpr int kKeyRow = 2 * kDim, kValueRow = 2 * kSlice;
static_assert(kWarps == 2 * kMostTiles && kMostSteps <= kLanes);

struct Layout {
  int keys, queries, scores, weights, fours, largest, factors, tops, totals, bytes;
  __host__ __device__ constexpr explicit Layout(int heads)
      : keys(0),                                     // [kMostShare][kKeyRow], then [kMostKeys][kValueRow]
        queries(kMostKeys * kValueRow),              // [heads][kKeyRow], then [heads][kWeightRow] of all keys
        scores(queries + heads * kWeightRow),        // of the own keys, as all below: [heads][kScoreStride]
        weights(scores + heads * kScoreStride * 4),  // bf16 [heads][kMostShare]
        fours(weights + heads * kMostShare * 2),     // sums of 4 keys [heads][kMostShare / 4]
        largest(fours + heads * kMostShare),         // of 8 keys [heads][kMostTiles]
        factors(largest + heads * kMostTiles * 4),   // of all keys' steps [kMostSteps][heads]
        tops(factors + kMostSteps * heads * 4),      // last maximum [heads]
        totals(tops + heads * 4),                    // [heads]
        bytes(totals + heads * 4) {}
};
static_assert(kMostShare * kKeyRow == kMostKeys * kValueRow && kKeyRow <= kWeightRow);

// 64 channels of a record on their way to shared memory.
struct Slice {
  uint4 codes[4];
  uint32_t scales;
};
__device__ __forceinline__ Slice load_slice(const RowKeys& keys, int k, int slice) {
  Slice s{};
  if (k < keys.num_window) {
    const uint8_t* record = keys.window_key(k);
#pragma unroll
    for (int i = 0; i < 4; ++i) s.codes[i] = *reinterpret_cast<const uint4*>(record + kSlice * slice + 16 * i);
    s.scales = *reinterpret_cast<const uint16_t*>(record + kDim + 2 * slice);
  } else if (k < keys.count) {
    const uint8_t* record = keys.entry(k);
#pragma unroll
    for (int i = 0; i < 2; ++i) s.codes[i] = *reinterpret_cast<const uint4*>(record + kSlice / 2 * slice + 16 * i);
    s.scales = *reinterpret_cast<const uint32_t*>(record + kDim / 2 + 4 * slice);
  }
  return s;
}
// Stores the slice as pieces first_piece .. + 7 of row `row`. Missing keys are zeros.
template <int kRowBytes>
__device__ __forceinline__ void store_slice(const RowKeys& keys, int k, const Slice& s, uint8_t* tile, int row,
                                            int first_piece) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(s.codes);
  auto piece = [&](int c) -> uint4& {
    return *reinterpret_cast<uint4*>(tile + piece_at<kRowBytes>(row, first_piece + c));
  };
  if (k < keys.num_window) {
#pragma unroll
    for (int c = 0; c < kSlice / 8; ++c)
      piece(c) = expand_e4m3(words[2 * c], words[2 * c + 1], window_factor(s.scales >> c / 4 * 8 & 255));
  } else {
#pragma unroll
    for (int c = 0; c < kSlice / 8; ++c) piece(c) = expand_e2m1(words[c], entry_factor(s.scales >> c / 2 * 8 & 255));
  }
}

// 16 kGroups heads x 8 keys: the chain over steps of 16 channels 0, 2, 4 .. or 1, 3, 5 ..
template <int kGroups>
__device__ __forceinline__ void score_tile(float (&c)[kGroups][4], uint32_t queries_at, uint32_t keys_at, int tile,
                                           int chain) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 4
  for (int i = 0; i < kDim / 32; i += 2) {
    uint32_t b[4];
    load_matrices(b, keys_at + piece_at<kKeyRow>(8 * tile + lane % 8, 4 * (i + lane / 16) + 2 * chain + lane / 8 % 2));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t a[4];
        const int head = kGroupHeads * g + lane % 16;
        load_matrices(a, queries_at + piece_at<kKeyRow>(head, 4 * (i + k) + 2 * chain + lane / 16));
        mma(c[g], a, b[2 * k], b[2 * k + 1]);
      }
    }
  }
}

// The keys of a row as the blocks of a cluster share them out, in tiles of 8 keys.
struct Share {
  int num_steps, num_tiles, tiles, first, mine;  // all; of a block, even; this block's
  __device__ Share(int num_keys, int rank) {
    num_steps = (num_keys + 63) / 64;
    num_tiles = (num_keys + 15) / 16 * 2;
    tiles = 2 * ((num_tiles / 2 + kBlocks - 1) / kBlocks);
    first = rank * tiles;
    mine = max(0, min(tiles, num_tiles - first));
  }
};

template <int kGroups>
__global__ void __launch_bounds__(kThreads, 1) attention_few_kernel(AttentionArgs p) {
  begin_kernel();
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kHeads = kGroups * kGroupHeads;
  constexpr Layout kAt(kHeads);
  const int64_t t = blockIdx.x;
  const int first_head = blockIdx.y * kHeads, rank = static_cast<int>(blockIdx.z);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  auto floats = [&](int at) { return reinterpret_cast<float*>(shared + at); };
  float *scores = floats(kAt.scores), *fours = floats(kAt.fours), *largest = floats(kAt.largest),
        *factors = floats(kAt.factors), *tops = floats(kAt.tops), *totals = floats(kAt.totals);
  const RowKeys keys(p, t);
  const Share share(keys.count, rank);
  const int my_keys = 8 * share.mine, thread = static_cast<int>(threadIdx.x);

  const bool has_slice = thread < 8 * my_keys;
  const int its_key = has_slice ? thread % my_keys : 0, its_slice = has_slice ? thread / my_keys : 0;
  Slice slice;
  if (has_slice) slice = load_slice(keys, 8 * share.first + its_key, its_slice);
  load_queries<kHeads>(p, t, first_head, shared + kAt.queries, piece_at<kKeyRow>);
  if (has_slice)
    store_slice<kKeyRow>(keys, 8 * share.first + its_key, slice, shared + kAt.keys, its_key, its_slice * (kSlice / 8));
  __syncthreads();
  slice = load_slice(keys, thread, rank);  // of the values, on its way beside the scores

  // A warp a tile and a chain; the second chain passes through shared memory.
  const int tile = warp % kMostTiles, chain = warp / kMostTiles;
  const bool has_tile = tile < share.mine;
  float c[kGroups][4] = {};
  if (has_tile) score_tile<kGroups>(c, base + kAt.queries, base + kAt.keys, tile, chain);
  auto score_at = [&](int g, int i) {
    return reinterpret_cast<float2*>(scores + (kGroupHeads * g + lane / 4 + 8 * i) * kScoreStride + 8 * tile +
                                     lane % 4 * 2);
  };
  if (has_tile && chain == 1) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) *score_at(g, i) = {c[g][2 * i], c[g][2 * i + 1]};
    }
  }
  __syncthreads();
  if (has_tile && chain == 0) {
    const float exponent_scale = p.scale * 1.44269504f * kFreed;
    const int k = 8 * tile + lane % 4 * 2, left = keys.count - 8 * share.first;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 other = *score_at(g, i);
        const float a = k < left ? (c[g][2 * i] + other.x) * exponent_scale : -INFINITY;
        const float b = k + 1 < left ? (c[g][2 * i + 1] + other.y) * exponent_scale : -INFINITY;
        *score_at(g, i) = {a, b};
        const float most = lane_max<4>(fmaxf(a, b));
        if (lane % 4 == 0) largest[(kGroupHeads * g + lane / 4 + 8 * i) * kMostTiles + tile] = most;
      }
    }
  }
  cluster_barrier();

  // Sixteen threads a head; thread s of them knows the running maximum of step s.
  for (int v = thread; v < kHeads * kLanes; v += kThreads) {
    const int h = v / kLanes, part = v % kLanes;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = 8 * part + i;
      if (at < share.num_tiles)
        most = fmaxf(most, remote_float(largest + h * kMostTiles + at % share.tiles, at / share.tiles));
    }
    float top = fmaxf(-1e30f, ceilf(most));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, top, step, kLanes);
      if (part >= step) top = fmaxf(top, before);
    }
    const float before = __shfl_up_sync(0xffffffffu, top, 1, kLanes);
    if (part < share.num_steps)
      factors[part * kHeads + h] = power_of_two(fmaxf((part == 0 ? -1e30f : before) - top, -126.f));
    if (part == kLanes - 1) tops[h] = top;
#pragma unroll
    for (int i = 0; i < (kMostShare / 4 + kLanes - 1) / kLanes; ++i) {
      const int four = part + kLanes * i;
      const float its_top = __shfl_sync(0xffffffffu, top, (2 * share.first + four) / 16, kLanes);
      if (four >= 2 * share.mine) continue;
      const float4 s = *reinterpret_cast<const float4*>(scores + h * kScoreStride + 4 * four);
      const float e[4] = {exp2f(s.x - its_top), exp2f(s.y - its_top), exp2f(s.z - its_top), exp2f(s.w - its_top)};
      fours[h * (kMostShare / 4) + four] = ((e[0] + e[1]) + e[2]) + e[3];
      __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(e[0], e[1]), __floats2bfloat162_rn(e[2], e[3])};
      *reinterpret_cast<uint2*>(shared + kAt.weights + h * kMostShare * 2 + 8 * four) = *reinterpret_cast<uint2*>(pair);
    }
  }
  cluster_arrive();
  // Nobody of this block reads the keys any more.
  if (thread < 8 * share.num_tiles) store_slice<kValueRow>(keys, thread, slice, shared + kAt.keys, thread, 0);
  cluster_wait();

  for (int i = thread; i < kHeads * share.num_tiles; i += kThreads) {
    const int h = i / share.num_tiles, at = i % share.num_tiles;
    *reinterpret_cast<uint4*>(shared + kAt.queries + h * kWeightRow + 16 * at) =
        remote_vector(shared + kAt.weights + h * kMostShare * 2 + 16 * (at % share.tiles), at / share.tiles);
  }
  for (int v = thread; v < kHeads * kLanes; v += kThreads) {
    const int h = v / kLanes, part = v % kLanes;
    float four[kMostSteps];
#pragma unroll
    for (int step = 0; step < kMostSteps; ++step) {
      const int at = 16 * step + part;
      four[step] = at < 2 * share.num_tiles
                       ? remote_float(fours + h * (kMostShare / 4) + at % (2 * share.tiles), at / (2 * share.tiles))
                       : 0.f;
    }
    float denominator = 0;
#pragma unroll
    for (int step = 0; step < kMostSteps; ++step) {  // the tree of attention_mma.cu
      float all = four[step];
      all += __shfl_xor_sync(0xffffffffu, all, 4);
      all += __shfl_xor_sync(0xffffffffu, all, 8);
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      if (step < share.num_steps) denominator = denominator * factors[step * kHeads + h] + all;
    }
    if (part == 0) totals[h] = denominator + exp2f(fminf(p.sink[first_head + h] * 1.44269504f - tops[h], 126.f));
  }
  cluster_arrive();  // the others' memory is not read any more
  __syncthreads();

  // sum += P K: 8 channels and a half of the groups a warp, keys in order.
  constexpr int kSides = kGroups > 1 ? 2 : 1, kMine = kGroups / kSides;
  const int side = warp / kSumWarps, channel_tile = warp % kSumWarps;
  if (side < kSides) {
    float sum[kMine][4] = {};
    const int first_group = side * kMine;
    const uint32_t weights_at =
        base + kAt.queries + (kGroupHeads * first_group + lane % 16) * kWeightRow + lane / 16 * 16;
    for (int step = 0; step < share.num_steps; ++step) {
#pragma unroll
      for (int g = 0; g < kMine; ++g) {
        const float* its = factors + step * kHeads + kGroupHeads * (first_group + g) + lane / 4;
        sum[g][0] *= its[0], sum[g][1] *= its[0], sum[g][2] *= its[8], sum[g][3] *= its[8];
      }
#pragma unroll
      for (int k = 4 * step; k < 4 * step + 4; k += 2) {  // 2 x 16 keys
        if (k >= share.num_tiles / 2) break;
        uint32_t b[4];
        load_matrices_turned(b, base + kAt.keys + piece_at<kValueRow>(16 * k + lane, channel_tile));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (k + j >= share.num_tiles / 2) break;
#pragma unroll
          for (int g = 0; g < kMine; ++g) {
            uint32_t a[4];
            load_matrices(a, weights_at + kGroupHeads * g * kWeightRow + 32 * (k + j));
            mma(sum[g], a, b[2 * j], b[2 * j + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kMine; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = kGroupHeads * (first_group + g) + lane / 4 + 8 * i;
        const float inverse = kFreed / totals[head];
        const int channel = rank * kSlice + 8 * channel_tile + lane % 4 * 2, pair = channel / 2 - (kDim / 2 - kPairs);
        float a = round_b(sum[g][2 * i] * inverse), b = round_b(sum[g][2 * i + 1] * inverse);
        if (pair >= 0) turn(a, b, p.cos.row(t)[pair], -p.sin.row(t)[pair]);
        *reinterpret_cast<__nv_bfloat162*>(p.out.row(t) + (first_head + head) * kDim + channel) =
            __floats2bfloat162_rn(a, b);
      }
    }
  }
  cluster_wait();  // nobody leaves while its memory may be read
}

template <int kGroups>
constexpr int kSharedBytes = Layout(kGroups * kGroupHeads).bytes;
static_assert(kSharedBytes<4> <= 227 << 10);

template <int kGroups>
void prepare_kernel() {
  static const cudaError_t status = cudaFuncSetAttribute(
      attention_few_kernel<kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kGroups>);
  deepinfer::cuda::check(status, "attention");
}

// Clusters of 16 heads that run at a time.
int num_places() {
  static const int places = [] {
    prepare_kernel<1>();
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, 1, kBlocks};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1, 1, kBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes<1>;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int n = 0;
    deepinfer::cuda::check(cudaOccupancyMaxActiveClusters(&n, attention_few_kernel<1>, &config), "attention");
    return n;
  }();
  return places;
}

template <int kGroups>
void launch(cudaStream_t stream, const AttentionArgs& a) {
  prepare_kernel<kGroups>();
  const auto shares = static_cast<unsigned>(a.heads / (kGroups * kGroupHeads));
  start("attention", attention_few_kernel<kGroups>, dim3(a.num_rows, shares, kBlocks), kThreads, kSharedBytes<kGroups>,
        stream, a);
}

}  // namespace

void launch_few_attention(cudaStream_t stream, const AttentionArgs& a) {
  // While there is room every 16 heads have blocks of their own, which expand the keys again.
  if (a.heads % 64 != 0 || a.num_rows * (a.heads / kGroupHeads) <= num_places()) return launch<1>(stream, a);
  launch<4>(stream, a);
}

}  // namespace deepinfer::kernels::cuda
