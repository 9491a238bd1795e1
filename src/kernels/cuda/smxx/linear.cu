// Dense products: preparation of the tokens, then one launch for all weights of a format.
#include "kernels/cuda/smxx/few_rows.cuh"
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kPrepareThreads = 256;

// 4 words of 8 neighbouring columns to one piece of wide order: word q of the 4 lanes that have these columns of the 4
// scale groups of a block goes to lane q. What comes back is piece 4 j + q, j being the columns' place in the group.
__device__ __forceinline__ void exchange_words(uint32_t (&w)[4]) {
  const int q = threadIdx.x / 4 % 4;
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const bool is_high = (q & step) != 0;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, is_high ? w[i] : w[i | step], 4 * step);
      (is_high ? w[i] : w[i | step]) = got;
    }
  }
}

// A block takes 8 columns a thread of one row (4 threads a scale group), or of one place of a planned tile.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(Rows<Bf16> x, int64_t cols, Order order, bool rounds, bool is_aligned, Layout layout, MoeSlots slots,
                   Bf16* out) {
  begin_kernel();
  const int64_t t = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kPrepareThreads + threadIdx.x) * 8;
  int64_t row = t;
  if (slots.tiles != nullptr) {
    const int64_t number = t / kTileTokens;
    if (number >= *slots.num_tiles) return;
    const MoeTile tile = slots.tiles[number];
    const int i = static_cast<int>(t % kTileTokens);
    if (i >= tile.count) return;
    row = slots.list[tile.begin + i] / slots.top_k;
  }
  const bool exists = c < cols;
  __align__(16) Bf16 v[8] = {};
  if (exists) {
    const Bf16* from = x.row(row) + c;
    if (is_aligned) {
      *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8; ++i) v[i] = from[i];
    }
  }
  if (rounds) {
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(v);
    round_pairs<4>(pairs, lane_max<4>(largest_of<4>(pairs)));
  }
  __align__(16) Bf16 w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    w[i] = order == Order::kPairs8   ? v[column_at(Order::kPairs8, i)]
           : order == Order::kPairs4 ? v[column_at(Order::kPairs4, i)]
                                     : v[i];
  }
  uint4& words = *reinterpret_cast<uint4*>(w);
  int64_t place = t * cols + c;
  if (layout != Layout::kRows) {
    uint32_t word[4] = {words.x, words.y, words.z, words.w};
    exchange_words(word);
    words = {word[0], word[1], word[2], word[3]};
    const int64_t block = c / 128;
    const int piece = static_cast<int>(c % 32 / 8 * 4 + c % 128 / 32);
    place = layout == Layout::kWide
                ? t * cols + 128 * block + 8 * piece
                : tile_place(t / kTileTokens * (cols / 128) + block, static_cast<int>(t % kTileTokens), piece);
  }
  if (exists) *reinterpret_cast<uint4*>(out + place) = words;
}

// F32 weights: small, for completeness of the interface; a warp an output, lanes strided.
__global__ void f32_kernel(Rows<Bf16> x, const float* weight, int64_t rows, int64_t cols, ProductJob job) {
  begin_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp, t = blockIdx.y;
  if (i >= rows) return;
  float sum = 0;
  for (int64_t k = threadIdx.x % kWarp; k < cols; k += kWarp) sum += to_f(x.row(t)[k]) * weight[i * cols + k];
  sum = lane_sum(sum);
  if (threadIdx.x % kWarp != 0) return;
  const int64_t at = t * job.y_stride + i;
  if (job.accumulates) {
    static_cast<float*>(job.y)[at] += sum;
  } else if (job.keeps_f32) {
    static_cast<float*>(job.y)[at] = sum;
  } else {
    static_cast<Bf16*>(job.y)[at] = to_b(sum);
  }
}

template <Format F, int kM, int kN, bool kHalves>
__global__ void __launch_bounds__(kProductThreads, 2) few_linear_kernel(FewTask<LinearTask> task, FewMemory memory) {
  allow_next();
  extern __shared__ __align__(128) uint8_t shared[];
  few_rows<F, kM, kN, kHalves>(task, memory, shared, task.rounds, false);
}

// Whether tokens are kept as codes.
bool keeps_codes(const LinearTask& task) {
  return task.keeps_tokens && task.rounds &&
         std::all_of(task.jobs, task.jobs + task.num_jobs, [](const ProductJob& j) { return j.scale_shift == 5; });
}

// How many parts a tile has, and how long that takes in stages: a multiprocessor's tiles one after the other.
struct FewSplit {
  FewPlan plan;
  int parts, row_tiles, cost;
};
template <Format F, int kM, int kN>
FewSplit split_few(LinearTask& task) {
  const int tokens = std::min(task.num_tokens, 8 * kN);
  const int kept_bytes = task.keeps_tokens ? static_cast<int>(kept_token_bytes(tokens, task.cols)) : 0;
  FewSplit best{};
  // BF16 weights are not expanded: memory is the limit, and long rings count more than equal work.
  constexpr int kMostParts = F == Format::kBF16 ? 1 : kProductWarps;
  for (int parts = 1; parts <= kMostParts; parts *= 2) {
    const int rows = 16 * kM * parts, row_tiles = static_cast<int>(grid_of(task, rows, 8 * kN).x);
    const FewPlan plan = plan_few_memory(FewStage<F, kM>::bytes(task.keeps_tokens ? 0 : tokens),
                                         few_sum_bytes(task.cols, rows, tokens), kept_bytes, tokens);
    const int places = plan.blocks_per_multiprocessor * num_multiprocessors();
    const auto tiles = static_cast<int>(blocks_for(row_tiles, num_multiprocessors()));
    // The sums of a tile and the way to the next cost about a stage.
    const int stages = segments_a_warp(num_segments_of(task.cols), parts) * segment_of(task.cols) / 128 + 1;
    const FewSplit split{plan, parts, row_tiles, tiles * stages};
    const bool employs_all = 10 * row_tiles >= 9 * places;
    if (parts == 1 || (plan.fits && employs_all && split.cost < best.cost)) best = split;
  }
  return best;
}
template <Format F, int kM, int kN>
void launch_few(cudaStream_t stream, LinearTask& task, const FewSplit& split) {
  grid_of(task, 16 * kM * split.parts, 8 * kN);
  auto* kernel = few_linear_kernel<F, kM, kN, false>;
  if constexpr (F == Format::kFp8) {
    if (keeps_codes(task)) kernel = few_linear_kernel<F, kM, kN, true>;
  }
  launch_persistent("few_rows", kernel, split.row_tiles, split.plan, stream,
                    FewTask<LinearTask>{task, split.row_tiles, 8 * kN, split.parts, 0}, split.plan.memory);
}

template <Format F>
void launch_few(cudaStream_t stream, LinearTask& task) {
  constexpr int kM = F == Format::kFp4 ? 2 : 1;
  task.num_tokens > 8 ? launch_few<F, kM, 2>(stream, task, split_few<F, kM, 2>(task))
                      : launch_few<F, kM, 1>(stream, task, split_few<F, kM, 1>(task));
}

template <Format F>
void launch(cudaStream_t stream, LinearTask& task) {
  if (task.num_tokens <= kFewTokens) return launch_few<F>(stream, task);
  const dim3 grid = grid_of(task, 128, 128);
  if (task.num_tokens > 64 && grid.x * grid.y >= static_cast<unsigned>(num_multiprocessors()))
    return launch_many<F, 2, 8>(stream, grid, task);
  launch_many<F, 1, 4>(stream, grid_of(task, 64, 64), task);
}

}  // namespace

void launch_prepare(cudaStream_t stream, Rows<Bf16> x, int num_rows, int64_t cols, Order order, bool rounds,
                    Layout layout, const MoeSlots* slots, Bf16* out) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
  const dim3 grid(slots == nullptr ? num_rows : slots->max_tiles * kTileTokens,
                  static_cast<unsigned>(blocks_for(cols, kPrepareThreads * 8)));
  start("prepare", prepare_kernel, grid, kPrepareThreads, 0, stream, x, cols, order, rounds, is_aligned, layout,
        slots == nullptr ? MoeSlots{} : *slots, out);
}

void launch_products(cudaStream_t stream, Format format, const ProductArgs& a) {
  LinearTask task{a};
  switch (format) {
    case Format::kFp8:
      return launch<Format::kFp8>(stream, task);
    case Format::kFp4:
      return launch<Format::kFp4>(stream, task);
    case Format::kBF16:
      return launch<Format::kBF16>(stream, task);
  }
}

void launch_f32_product(cudaStream_t stream, Rows<Bf16> x, int num_rows, const float* weight, int64_t cols,
                        const ProductJob& job) {
  const dim3 grid(static_cast<unsigned>(blocks_for(job.num_rows, 8)), num_rows);
  start("f32 product", f32_kernel, grid, 256, 0, stream, x, weight, job.num_rows, cols, job);
}

}  // namespace deepinfer::kernels::cuda
