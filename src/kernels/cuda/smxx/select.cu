// Index scores and selection (model.md 3.4).
//
//   queries   rotated, rounded to fp4e8 and stored as BF16 values; head weights times the factor
//   scores    a warp takes 16 keys at a time against all heads on tensor cores; a score is kept as an ordered 16-bit
//   key
//             of its bf16 value, 0 for "never chosen" (NaN, -inf, invisible)
//   blocks    at the candidate source: the best key of every block, the newest one forced in
//   top_k     a cluster of blocks a row, one block with many rows: two passes of counting find the k-th largest key,
//   one pass in order writes the indices
//
// Sums: channels in the order of smxx/mma.cuh, heads 2 q, 2 q + 1 of every 8 ascending, then quads by butterfly.
// Rows are worked on as many at a time as the workspace holds scores for; a row's result does not depend on that.
#include <algorithm>

#include "kernels/cuda/smxx/cluster.cuh"
#include "kernels/cuda/smxx/mma.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kMaxHeads = kMaxIndexHeads;
constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / kWarp;
constexpr int kTopThreads = 1024, kPerThread = 8;
constexpr unsigned kTopBlocks = 8;  // of a cluster at most
constexpr uint32_t kForced = 0xffff;

// Larger scores have larger keys; equal scores (0 and -0 too) equal ones.
__device__ __forceinline__ uint32_t ordered_key(float score) {
  const uint32_t u = __bfloat16_as_ushort(to_b(score));
  if ((u & 0x7fff) > 0x7f80 || u == 0xff80) return 0;
  if (u == 0x8000) return 0x8000;
  return u & 0x8000 ? ~u & 0xffff : u | 0x8000;
}

// A block a row, a warp a head.
__global__ void __launch_bounds__(kMaxHeads* kWarp) queries_kernel(QueryArgs p) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  const int h = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  Bf16* out = p.out + (t * kMaxHeads + h) * p.dim;
  if (lane == 0)
    p.out_weights[t * kMaxHeads + h] = h < p.heads ? round_b(to_f(p.head_weights.row(t)[h]) * p.head_scale) : 0.f;
  for (int g = 0; g < p.dim / 32; ++g) {
    const int c = 32 * g + lane;
    float v = h < p.heads ? to_f(p.q.row(t)[h * p.dim + c]) : 0.f;
    const float other = __shfl_xor_sync(0xffffffffu, v, 1);
    const int pair = (c - (p.dim - 2 * p.pairs)) / 2;
    if (c >= p.dim - 2 * p.pairs) {
      float a = c % 2 == 0 ? v : other, b = c % 2 == 0 ? other : v;
      turn(a, b, p.cos.row(t)[pair], p.sin.row(t)[pair]);
      v = round_b(c % 2 == 0 ? a : b);
    }
    const float scale = ue8m0_value(ue8m0_ceil(fmaxf(lane_max(fabsf(v)), kFp4e8Floor), kInvE2M1));
    out[c / 8 * 8 + place_of(Order::kPairs4, c % 8)] = to_b(e2m1_value(e2m1_code(v / scale)) * scale);
  }
}

// The number of keys of a row; places past it are not written. Candidates: place i is entry i % size of block i / size.
__device__ __forceinline__ int64_t num_places(const ScoreArgs& s, int64_t visible) {
  return s.candidates == nullptr ? visible : static_cast<int64_t>(s.num_candidates) * s.candidate_size;
}
// The entry at a place, or -1.
__device__ __forceinline__ int64_t entry_at(const ScoreArgs& s, int64_t t, int64_t place, int64_t visible) {
  if (s.candidates == nullptr) return place < visible ? place : -1;
  if (place >= static_cast<int64_t>(s.num_candidates) * s.candidate_size) return -1;
  const int32_t block = s.candidates[t * s.candidate_stride + place / s.candidate_size];
  const int64_t entry = static_cast<int64_t>(block) * s.candidate_size + place % s.candidate_size;
  return block >= 0 && entry < visible ? entry : -1;
}

__global__ void __launch_bounds__(kScoreThreads) scores_kernel(ScoreArgs s) {
  begin_kernel();
  const int64_t t = s.first_row + blockIdx.y;
  const int lane = threadIdx.x % kWarp, q = lane % 4, r = lane / 4;
  const int32_t* table = s.runs[s.run_of_row[t]].block_table;
  const int64_t visible = (s.positions[t] + 1) / s.cache.ratio, count = num_places(s, visible);
  uint16_t* keys = s.keys + blockIdx.y * s.stride;
  const bool has_group = 32 * q < s.dim;
  // A recorded launch has blocks for the longest sequence.
  if (int64_t{blockIdx.x} * kScoreWarps * 16 >= count) return;

  uint32_t b[kMaxHeads / 8][16];  // the thread's 32 channels of 4 heads
  float weights[kMaxHeads / 8][2];
#pragma unroll
  for (int n = 0; n < kMaxHeads / 8; ++n) {
    const uint4* from = reinterpret_cast<const uint4*>(s.queries + (t * kMaxHeads + 8 * n + r) * s.dim + 32 * q);
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<uint4*>(b[n])[i] = has_group ? from[i] : uint4{};
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[n][i] = s.weights[t * kMaxHeads + 8 * n + 2 * q + i];
  }

  const int64_t step = static_cast<int64_t>(gridDim.x) * kScoreWarps * 16;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kScoreWarps + threadIdx.x / kWarp) * 16; first < count;
       first += step) {
    const int64_t entries[2] = {entry_at(s, t, first + r, visible), entry_at(s, t, first + r + 8, visible)};
    if (!__any_sync(0xffffffffu, entries[0] >= 0 || entries[1] >= 0)) {  // candidates that are not there yet
      for (int64_t place = first + lane; place < min(count, first + 16); place += kWarp) keys[place] = 0;
      continue;
    }
    uint4 raw[2][1];
    uint32_t factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw[i][0] = {};
      factor[i] = 0;
      if (entries[i] < 0 || !has_group) continue;
      const IndexRecord record = index_record(s.cache, table, static_cast<uint32_t>(entries[i]));
      raw[i][0] = *reinterpret_cast<const uint4*>(record.codes + 16 * q);
      factor[i] = scale_factor<Format::kFp4>(record.scales[q]);
    }
    float c[kMaxHeads / 8][4] = {};
    unrolled<8>([&](auto k) {
      constexpr int kStep = decltype(k)::value;
      uint32_t a[4];
      expand<Format::kFp4, kStep>(raw[0], factor[0], a[0], a[2]);
      expand<Format::kFp4, kStep>(raw[1], factor[1], a[1], a[3]);
#pragma unroll
      for (int n = 0; n < kMaxHeads / 8; ++n) mma(c[n], a, b[n][2 * kStep], b[n][2 * kStep + 1]);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kMaxHeads / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float similarity = round_b(c[n][2 * i + k] * inverse_unit(Format::kFp4));
          sum += round_b((similarity > 0 ? similarity : 0.f) * weights[n][k]);
        }
      }
      sum = lane_sum<4>(sum);
      const int64_t place = first + r + 8 * i;
      if (q == 0 && place < count) keys[place] = static_cast<uint16_t>(entries[i] < 0 ? 0 : ordered_key(sum));
    }
  }
}

// Keys of blocks of `size` entries.
__global__ void blocks_kernel(ScoreArgs s, int size, uint16_t* out, int64_t out_stride) {
  begin_kernel();
  const int64_t t = s.first_row + blockIdx.y;
  const int64_t visible = (s.positions[t] + 1) / s.cache.ratio, count = blocks_for(visible, size);
  const uint16_t* keys = s.keys + blockIdx.y * s.stride;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < count; b += step) {
    uint32_t best = 0;
    for (int64_t i = b * size; i < min(visible, (b + 1) * size); ++i) best = max(best, static_cast<uint32_t>(keys[i]));
    out[blockIdx.y * out_stride + b] = static_cast<uint16_t>(b == count - 1 ? kForced : best);
  }
}

struct TopK {
  ScoreArgs scores;
  const uint16_t* keys;  // of the scores, or of blocks
  int64_t stride;
  int block_size;  // 1: keys of places; else keys of blocks of so many entries
  Rows<int32_t> out;
  int k;
};

// Inclusive sum over the block's threads of two counts packed in one word.
__device__ uint32_t scan_block(uint32_t v, uint32_t* scratch, uint32_t& all) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffffu, v, step);
    if (lane >= step) v += before;
  }
  __syncthreads();
  if (lane == kWarp - 1) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    uint32_t w = scratch[lane];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t before = __shfl_up_sync(0xffffffffu, w, step);
      if (lane >= step) w += before;
    }
    scratch[lane] = w;
  }
  __syncthreads();
  all = scratch[kWarp - 1];
  return v + (warp == 0 ? 0 : scratch[warp - 1]);
}

// Counts the bytes of all keys (high), or the low bytes of those whose high byte is `high`, into bins[256]. A lane has
// counters of its own, [256][32]: most scores share a few high bytes.
__device__ void count_bytes(const uint16_t* keys, int64_t begin, int64_t end, int high, uint32_t* counters,
                            uint32_t* bins) {
  for (int i = threadIdx.x; i < 256 * kWarp; i += kTopThreads) counters[i] = 0;
  __syncthreads();
  uint32_t* mine = counters + threadIdx.x % kWarp;
  for (int64_t at = begin + threadIdx.x * int64_t{kPerThread}; at < end; at += int64_t{kTopThreads} * kPerThread) {
    const uint4 packed = *reinterpret_cast<const uint4*>(keys + at);
    const uint16_t* v = reinterpret_cast<const uint16_t*>(&packed);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (at + i >= end || v[i] == 0) continue;
      if (high < 0) {
        atomicAdd(mine + (v[i] >> 8) * kWarp, 1u);
      } else if (v[i] >> 8 == high) {
        atomicAdd(mine + (v[i] & 255) * kWarp, 1u);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    uint32_t sum = 0;
    for (int i = 0; i < kWarp; ++i) sum += counters[threadIdx.x * kWarp + (threadIdx.x + i) % kWarp];
    bins[threadIdx.x] = sum;
  }
  __syncthreads();
}

// all[256] = sum of the cluster's bins.
__device__ void add_bins(const uint32_t* bins, int num_blocks, uint32_t* all) {
  cluster_barrier();
  if (threadIdx.x < 256) {
    uint32_t sum = 0;
    for (int rank = 0; rank < num_blocks; ++rank) sum += remote_word(bins + threadIdx.x, rank);
    all[threadIdx.x] = sum;
  }
  __syncthreads();
}

// The bin that holds the `wanted`-th largest, and how many are wanted of it; -1 if there are not so many.
__device__ void find_bin(const uint32_t* bins, int wanted, int* bin, int* left) {
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    uint32_t mine = 0;  // lane l holds bins 255 - 8 l down to 248 - 8 l
    for (int i = 0; i < 8; ++i) mine += bins[255 - 8 * lane - i];
    uint32_t sum = mine;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t before = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == kWarp - 1 && sum < static_cast<uint32_t>(wanted)) *bin = -1;
    uint32_t above = sum - mine;
    if (above < static_cast<uint32_t>(wanted) && sum >= static_cast<uint32_t>(wanted)) {
      for (int i = 0; i < 8; ++i) {
        const int b = 255 - 8 * lane - i;
        if (above + bins[b] >= static_cast<uint32_t>(wanted)) {
          *bin = b;
          *left = wanted - static_cast<int>(above);
          break;
        }
        above += bins[b];
      }
    }
  }
  __syncthreads();
}

// A cluster of num_blocks a row, each with a piece of the keys in order.
__global__ void __launch_bounds__(kTopThreads) top_k_kernel(TopK p, int num_blocks) {
  begin_kernel();
  __shared__ uint32_t counters[256 * kWarp], high_bins[256], low_bins[256], all[256], scratch[kWarp];
  __shared__ uint32_t found[2];  // of this block: keys above the border, keys that equal it
  __shared__ int bin[2], left[2];
  const int row = static_cast<int>(blockIdx.x) / num_blocks, rank = static_cast<int>(cluster_rank());
  const int64_t t = p.scores.first_row + row;
  const int64_t visible = (p.scores.positions[t] + 1) / p.scores.cache.ratio;
  const int64_t count = p.block_size > 1 ? blocks_for(visible, p.block_size) : num_places(p.scores, visible);
  const uint16_t* keys = p.keys + row * p.stride;
  int32_t* out = p.out.row(t);
  const int64_t share = blocks_for(count, num_blocks * kPerThread) * kPerThread;
  const int64_t begin = min(count, rank * share), end = min(count, begin + share);

  count_bytes(keys, begin, end, -1, counters, high_bins);
  add_bins(high_bins, num_blocks, all);
  find_bin(all, p.k, &bin[0], &left[0]);
  uint32_t border = 0;  // keys above it are chosen, and the first `ties` that equal it
  int ties = 0;
  if (bin[0] >= 0) {
    count_bytes(keys, begin, end, bin[0], counters, low_bins);
    add_bins(low_bins, num_blocks, all);
    find_bin(all, left[0], &bin[1], &left[1]);
    border = static_cast<uint32_t>(bin[0] << 8 | bin[1]);
    ties = left[1];
  }
  if (threadIdx.x == 0) {
    uint32_t above = 0;
    for (int b = bin[0] + 1; b < 256; ++b) above += high_bins[b];
    for (int b = bin[0] < 0 ? 256 : bin[1] + 1; b < 256; ++b) above += low_bins[b];
    found[0] = above;
    found[1] = bin[0] < 0 ? 0 : low_bins[bin[1]];
  }
  cluster_barrier();
  int num_above = 0, num_equal = 0, total = 0, total_equal = 0;  // of the blocks before, of all
  for (int r = 0; r < num_blocks; ++r) {
    const int above = static_cast<int>(remote_word(found, r)), equal = static_cast<int>(remote_word(found + 1, r));
    if (r < rank) num_above += above, num_equal += equal;
    total += above, total_equal += equal;
  }

  for (int64_t base = begin; base < end; base += int64_t{kTopThreads} * kPerThread) {
    const int64_t at = base + threadIdx.x * int64_t{kPerThread};
    uint16_t v[kPerThread] = {};
    if (at < end) *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(keys + at);
    uint32_t mine = 0;  // above in the low half, equal in the high half
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (at + i >= end) v[i] = 0;
      if (v[i] == 0) continue;
      mine += v[i] > border ? 1u : v[i] == border ? 1u << 16 : 0u;
    }
    uint32_t sum;
    const uint32_t before = scan_block(mine, scratch, sum) - mine;
    int above = num_above + static_cast<int>(before & 0xffff), equal = num_equal + static_cast<int>(before >> 16);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (v[i] == 0) continue;
      const bool is_above = v[i] > border, is_equal = v[i] == border;
      if (is_above || (is_equal && equal < ties)) {
        const int64_t entry = p.block_size > 1 ? at + i : entry_at(p.scores, t, at + i, visible);
        out[above + min(equal, ties)] = static_cast<int32_t>(entry);
      }
      above += is_above;
      equal += is_equal;
    }
    num_above += static_cast<int>(sum & 0xffff);
    num_equal += static_cast<int>(sum >> 16);
  }
  if (rank == 0) {
    for (int i = total + min(total_equal, ties) + threadIdx.x; i < p.k; i += kTopThreads) out[i] = -1;
  }
  cluster_barrier();  // nobody leaves while its memory may be read
}

// Enough blocks to fill the machine with one row, and no more than there are keys.
unsigned splits_of(const ScoreArgs& a) {
  const int64_t useful = blocks_for(a.stride, 16 * kScoreWarps), wanted = std::max(1, 1056 / a.num_rows);
  return static_cast<unsigned>(std::max<int64_t>(1, std::min(useful, wanted)));
}

}  // namespace

void launch_index_queries(cudaStream_t stream, const QueryArgs& a) {
  start("index queries", queries_kernel, a.num_rows, kMaxHeads * kWarp, 0, stream, a);
}
void launch_index_scores(cudaStream_t stream, const ScoreArgs& a) {
  start("index scores", scores_kernel, dim3(splits_of(a), a.num_rows), kScoreThreads, 0, stream, a);
}
void launch_block_keys(cudaStream_t stream, const ScoreArgs& a, uint16_t* out, int64_t out_stride) {
  start("index blocks", blocks_kernel, dim3(std::max(1u, splits_of(a) / 4), a.num_rows), 256, 0, stream, a,
        a.candidate_size, out, out_stride);
}
void launch_top_k(cudaStream_t stream, const ScoreArgs& scores, const uint16_t* keys, int64_t stride, int block_size,
                  Rows<int32_t> out, int k) {
  // As many blocks a row as have places beside each other, two a multiprocessor.
  unsigned blocks = kTopBlocks;
  while (blocks > 1 &&
         blocks * static_cast<unsigned>(scores.num_rows) > 2u * static_cast<unsigned>(num_multiprocessors()))
    blocks /= 2;
  start_clusters("top_k", top_k_kernel, blocks * static_cast<unsigned>(scores.num_rows), blocks, kTopThreads, 0, stream,
                 TopK{scores, keys, stride, block_size, out, k}, static_cast<int>(blocks));
}

}  // namespace deepinfer::kernels::cuda
