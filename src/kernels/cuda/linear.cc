// Dense products: which launches a list of weights takes, and the tokens' copy in the order of each format.
#include <vector>

#include "kernels/cuda/arguments.h"

namespace deepinfer::kernels::cuda {
namespace {

Format format_of(Weight::Kind kind) {
  return kind == Weight::Kind::kFp4 ? Format::kFp4 : kind == Weight::Kind::kBF16 ? Format::kBF16 : Format::kFp8;
}

ProductJob job_of(const Weight& w, const TensorView& y, bool keeps_f32, bool accumulates) {
  DI_CHECK(w.cols % 32 == 0, "a weight of {} columns", w.cols);
  DI_CHECK(y.dtype == (keeps_f32 || accumulates ? DType::kF32 : DType::kBF16), "result in {}", dtype_name(y.dtype));
  return {.codes = static_cast<const uint8_t*>(w.codes),
          .scales = w.scales,
          .y = y.data,
          .y_stride = y.stride,
          .x_column = 0,
          .first_tile = 0,
          .num_rows = static_cast<int>(w.rows),
          .scale_shift = w.kind == Weight::Kind::kFp8 ? 5 : 0,
          .keeps_f32 = keeps_f32,
          .accumulates = accumulates};
}

// Which kernel takes these tokens: kWide and kTiles are Hopper's. Tiles of 128 tokens need enough weight rows to employ
// half of the machine; with fewer, smaller tiles share out the columns as well.
Layout layout_of(Format format, int64_t num_tokens, int64_t cols, const std::vector<ProductJob>& jobs) {
  if (format == Format::kFp4 || num_tokens <= kFewTokens || cols % 128 != 0 || !has_wide_products())
    return Layout::kRows;
  int64_t tiles = 0;
  for (const ProductJob& job : jobs) tiles += ceil_div(job.num_rows, 128) * ceil_div(num_tokens, kTileTokens);
  return num_tokens > 64 && 2 * tiles >= multiprocessors() ? Layout::kTiles : Layout::kWide;
}

// x as the kernel wants it: where it lies, or a copy in the arena.
TensorView prepared(cudaStream_t stream, Arena& arena, const TensorView& x, Format format, bool rounds, Layout layout) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
  const Order order = x.rows <= kFewTokens ? Order::kNatural : order_of(format);
  if (order == Order::kNatural && !rounds && is_aligned && layout == Layout::kRows) return x;
  auto* copy = arena.array<Bf16>((layout == Layout::kTiles ? round_up(x.rows, kTileTokens) : x.rows) * x.cols);
  launch_prepare(stream, bf16_rows(x), static_cast<int>(x.rows), x.cols, order, rounds, layout, nullptr, copy);
  return TensorView::make(copy, DType::kBF16, x.rows, x.cols);
}

// All jobs of one format over one prepared input.
void run_jobs(cudaStream_t stream, Format format, Layout layout, const TensorView& x,
              const std::vector<ProductJob>& jobs, int cols, bool keeps_tokens, bool rounds) {
  for (size_t first = 0; first < jobs.size(); first += kMaxJobs) {
    ProductArgs a{};
    a.num_jobs = static_cast<int>(std::min<size_t>(kMaxJobs, jobs.size() - first));
    std::copy_n(jobs.begin() + static_cast<int64_t>(first), a.num_jobs, a.jobs);
    a.num_tokens = static_cast<int>(x.rows);
    a.cols = cols;
    a.x = device_bf16(x.data);
    a.x_stride = x.stride;
    a.row_bytes = row_bytes_of(format, cols);
    a.keeps_tokens = keeps_tokens;
    a.rounds = rounds;
    constexpr void (*kLaunches[])(cudaStream_t, Format, const ProductArgs&) = {launch_products, launch_wide_products,
                                                                               launch_tile_products};
    kLaunches[static_cast<int>(layout)](stream, format, a);
  }
}

}  // namespace

int64_t linear_scratch_bytes(const Ops::WorkspaceShape& s) {
  const int64_t widest = std::max(s.max_cols, s.heads * s.head_dim);            // wo_a takes the attention's output
  return 3 * (round_up(s.rows, kTileTokens) * widest * 2 + Arena::kAlignment);  // one copy a format
}

void CudaOps::linear(Stream& stream, const LinearParams& p) {
  if (p.x.rows == 0) return;
  cudaStream_t handle = handle_of(stream);
  Arena arena = scratch();
  const int cols = static_cast<int>(p.x.cols);
  for (Format format : {Format::kFp8, Format::kFp4, Format::kBF16}) {
    std::vector<ProductJob> jobs;
    for (const LinearJob& job : p.jobs) {
      DI_CHECK(job.weight.cols == cols && job.y.cols == job.weight.rows, "product of {} columns with [{}, {}] into {}",
               cols, job.weight.rows, job.weight.cols, job.y.cols);
      if (job.weight.kind != Weight::Kind::kF32 && format_of(job.weight.kind) == format)
        jobs.push_back(job_of(job.weight, job.y, job.keep_f32, job.accumulate));
    }
    if (jobs.empty()) continue;
    const bool rounds = format != Format::kBF16 && p.quantize_input;
    const bool keeps = can_keep_tokens(p.x.rows, cols);
    const Layout layout = layout_of(format, p.x.rows, cols, jobs);
    run_jobs(handle, format, layout, prepared(handle, arena, p.x, format, rounds && !keeps, layout), jobs, cols, keeps,
             rounds);
  }
  for (const LinearJob& job : p.jobs) {
    if (job.weight.kind != Weight::Kind::kF32) continue;
    launch_f32_product(handle, bf16_rows(p.x), static_cast<int>(p.x.rows), static_cast<const float*>(job.weight.codes),
                       cols, job_of(job.weight, job.y, job.keep_f32, job.accumulate));
  }
}

void CudaOps::grouped_linear(Stream& stream, const GroupedLinearParams& p) {
  if (p.x.rows == 0) return;
  cudaStream_t handle = handle_of(stream);
  Arena arena = scratch();
  const Format format = format_of(p.weight.kind);
  const int64_t rows = p.weight.rows / p.groups, cols = p.weight.cols;
  DI_CHECK(p.x.cols == p.groups * cols, "{} columns for {} groups of {}", p.x.cols, p.groups, cols);
  std::vector<ProductJob> jobs;
  for (int g = 0; g < p.groups; ++g) {
    Weight w = p.weight;
    w.rows = rows;
    w.codes = static_cast<const uint8_t*>(w.codes) + g * rows * row_bytes_of(format, cols);
    if (w.scales != nullptr) w.scales += g * rows / (w.kind == Weight::Kind::kFp8 ? 32 : 1) * (cols / 32);
    jobs.push_back(job_of(w, p.y.col_range(g * rows, rows), false, false));
    jobs.back().x_column = g * cols;
  }
  const Layout layout = layout_of(format, p.x.rows, cols, jobs);
  run_jobs(handle, format, layout, prepared(handle, arena, p.x, format, false, layout), jobs, static_cast<int>(cols),
           false, false);
}

}  // namespace deepinfer::kernels::cuda
