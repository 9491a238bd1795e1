// The matrix product of the reference backend: blocks of weight rows are decoded once and meet all rows of x.
#pragma once

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/formats.h"

namespace deepinfer::kernels::ref {

// store(t, i, sum over k of x[t, k] weight[row_begin + i, k]) for all rows t of x and all i < num_rows.
template <typename Store>
void product(ThreadPool& pool, const TensorView& x, const Weight& weight, int64_t row_begin, int64_t num_rows,
             Store&& store) {
  DI_CHECK(x.cols == weight.cols, "product of [{}, {}] with [{}, {}]", x.rows, x.cols, weight.rows, weight.cols);
  constexpr int64_t kBlock = 32;  // decoded rows that stay in the second-level cache while x streams by
  pool.split(num_rows, kBlock, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(weight.cols));
    std::vector<double> decoded(static_cast<size_t>(kBlock * weight.cols));
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      for (int64_t i = 0; i < count; ++i) {
        decode_row(weight, row_begin + first + i, row.data());
        std::copy(row.begin(), row.end(), decoded.begin() + i * weight.cols);
      }
      dots(
          x.rows, [&](int64_t t) { return x.f32(t); }, count, decoded.data(), x.cols,
          [&](int64_t t, int64_t i, double sum) { store(t, first + i, static_cast<float>(sum)); });
    }
  });
}

}  // namespace deepinfer::kernels::ref
