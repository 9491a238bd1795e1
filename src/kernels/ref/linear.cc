#include <algorithm>
#include <optional>

#include "kernels/ref/product.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {

Matrix RefOps::act_input(ThreadPool& pool, const TensorView& x) const {
  Matrix rounded(x.rows, x.cols);
  pool.split(x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(x.f32(t), x.cols, rounded.row(t));
      if (rounds_activations()) round_act(rounded.row(t), x.cols);
    }
  });
  return rounded;
}

void RefOps::linear(Stream& stream, const LinearParams& p) {
  ThreadPool& threads = pool_of(stream);
  std::optional<Matrix> rounded;  // made by the first job that wants it
  for (const LinearJob& job : p.jobs) {
    const bool coded = job.weight.kind != Weight::Kind::kF32 && job.weight.kind != Weight::Kind::kBF16;
    const bool rounds_input = coded && p.quantize_input && rounds_activations();
    if (rounds_input && !rounded) rounded = act_input(threads, p.x);
    product(threads, rounds_input ? rounded->view() : p.x, job.weight, 0, job.weight.rows,
            [&](int64_t t, int64_t i, float sum) {
              float& y = job.y.f32(t)[i];
              y = job.accumulate ? y + sum : job.keep_f32 ? sum : r(sum);
            });
  }
}

void RefOps::grouped_linear(Stream& stream, const GroupedLinearParams& p) {
  const int64_t rows = p.weight.rows / p.groups, k = p.weight.cols;
  for (int64_t g = 0; g < p.groups; ++g) {
    product(pool_of(stream), p.x.col_range(g * k, k), p.weight, g * rows, rows,
            [&](int64_t t, int64_t i, float sum) { p.y.f32(t)[g * rows + i] = r(sum); });
  }
}

}  // namespace deepinfer::kernels::ref
