// Dense products: preparation of the tokens, then one launch for all weights of a format.
#include "kernels/cuda/smxx/few_rows.cuh"
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kPrepareThreads = 256;

// 8 columns a thread, 4 threads a group.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(Rows<Bf16> x, int64_t cols, Order order, bool rounds, bool is_aligned, bool is_wide, Bf16* out) {
  begin_kernel();
  const int64_t t = blockIdx.y, c = (static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x) * 8;
  const bool exists = c < cols;
  __align__(16) Bf16 v[8] = {};
  if (exists) {
    const Bf16* from = x.row(t) + c;
    if (is_aligned) {
      *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8; ++i) v[i] = from[i];
    }
  }
  if (rounds) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(to_f(v[i])));
    const float scale = ue8m0_value(ue8m0_ceil(fmaxf(lane_max<4>(largest), kActFloor), kInvE4M3));
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = to_b(e4m3_value(e4m3_code(to_f(v[i]) / scale)) * scale);
  }
  if (!exists) return;
  __align__(16) Bf16 w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    w[i] = order == Order::kPairs8   ? v[column_at(Order::kPairs8, i)]
           : order == Order::kPairs4 ? v[column_at(Order::kPairs4, i)]
                                     : v[i];
  }
  if (!is_wide) {
    *reinterpret_cast<uint4*>(out + t * cols + c) = *reinterpret_cast<const uint4*>(w);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    *reinterpret_cast<uint32_t*>(out + t * cols + wide_place(static_cast<int>(c) + i)) =
        *reinterpret_cast<const uint32_t*>(w + i);
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

template <Format F, int kM, int kHalves, int kN>
__global__ void __launch_bounds__(kProductThreads, 2) few_linear_kernel(FewTask<LinearTask> task, FewMemory memory) {
  allow_next();
  extern __shared__ __align__(128) uint8_t shared[];
  few_rows<F, kM, kHalves, kN>(task, memory, shared, task.rounds, false);
}

template <Format F, int kM, int kHalves, int kN>
void launch_few(cudaStream_t stream, LinearTask& task) {
  constexpr int kRows = 16 * kM * kHalves;
  const int tokens = std::min(task.num_tokens, 8 * kN), row_tiles = static_cast<int>(grid_of(task, kRows, 8 * kN).x);
  const int kept_bytes = task.keeps_tokens ? static_cast<int>(kept_token_bytes(tokens, task.cols)) : 0;
  const FewPlan plan = plan_few_memory(FewStage<F, kM>::bytes(task.keeps_tokens ? 0 : tokens),
                                       few_sum_bytes(kRows, tokens), kept_bytes, tokens);
  launch_persistent("few_rows", few_linear_kernel<F, kM, kHalves, kN>, row_tiles, plan, stream,
                    FewTask<LinearTask>{task, row_tiles, 8 * kN, 0}, plan.memory);
}

template <Format F>
void launch_few(cudaStream_t stream, LinearTask& task) {
  constexpr int kM = F == Format::kBF16 ? 1 : 2;
  if (task.num_tokens > 8) return launch_few<F, kM, 1, 2>(stream, task);
  if constexpr (F == Format::kFp8) {
    // Small tiles where large ones would leave places idle, large ones where a warp would have few columns of each.
    constexpr int kShort = 2048;
    const int places = 2 * num_multiprocessors();
    if (static_cast<int>(grid_of(task, 32, 8).x) < places) return launch_few<F, 1, 1, 1>(stream, task);
    if (task.cols <= kShort && static_cast<int>(grid_of(task, 64, 8).x) >= places)
      return launch_few<F, 2, 2, 1>(stream, task);
  }
  launch_few<F, kM, 1, 1>(stream, task);
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
                    bool is_wide, Bf16* out) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
  const dim3 grid(static_cast<unsigned>(blocks_for(cols, kPrepareThreads * 8)), num_rows);
  start("prepare", prepare_kernel, grid, kPrepareThreads, 0, stream, x, cols, order, rounds, is_aligned, is_wide, out);
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
