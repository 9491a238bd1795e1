// Sums of products in double precision, in an order that never depends on how the work was cut.
//
// The product of two floats is exact in double, so these sums are as good as exact for every length that we meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::kernels::ref {

// Sum over k of a[k] b[k], in ascending k.
inline double sum_of_products(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

// Those below carry nearly all the work and run on widened copies.
inline std::vector<double> widened(std::span<const float> x) {
  return {x.begin(), x.end()};
}

// Sum over k of a[k] b[k]. Lane l of 8 adds the products with k mod 8 == l in ascending k, then the lanes are added as
// a binary tree.
double dot(const double* a, const double* b, int64_t n);

// The same for 4 rows of b [4, n] and one or four rows of a [4, n], which meet in registers: out[i][j].
void dot_1x4(const double* a, const double* b, int64_t n, double out[1][4]);
void dot_4x4(const double* a, const double* b, int64_t n, double out[4][4]);

// sum[k] += factor * b[k]
void add_scaled(double* sum, float factor, const double* b, int64_t n);

// store(i, j, dot(a(i), row j of b)) for all i < rows_a, j < rows_b. a(i): the n floats of a row; b: [rows_b, n].
template <typename A, typename Store>
void dots(int64_t rows_a, A&& a, int64_t rows_b, const double* b, int64_t n, Store&& store) {
  std::vector<double> wide(static_cast<size_t>(4 * n));
  for (int64_t i = 0, step; i < rows_a; i += step) {
    step = i + 4 <= rows_a ? 4 : 1;
    for (int64_t k = 0; k < step; ++k) std::copy_n(a(i + k), n, wide.begin() + k * n);
    int64_t j = 0;
    for (; j + 4 <= rows_b; j += 4) {
      double out[4][4];
      step == 4 ? dot_4x4(wide.data(), b + j * n, n, out) : dot_1x4(wide.data(), b + j * n, n, out);
      for (int64_t k = 0; k < step; ++k) {
        for (int64_t l = 0; l < 4; ++l) store(i + k, j + l, out[k][l]);
      }
    }
    for (; j < rows_b; ++j) {
      for (int64_t k = 0; k < step; ++k) store(i + k, j, dot(wide.data() + k * n, b + j * n, n));
    }
  }
}

}  // namespace deepinfer::kernels::ref
