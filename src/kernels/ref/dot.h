// Sums of products in double precision, in an order that never depends on how the work was cut.
//
// The product of two floats is exact in double, so these sums are as good as exact for every length that we meet.
#pragma once

#include <cstdint>

namespace deepinfer::kernels::ref {

// Sum over k of a[k] b[k], in ascending k.
inline double sum_of_products(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

// The three below carry nearly all the work.

// Sum over k of a[k] b[k]. Lane l of 32 adds the products with k mod 32 == l in ascending k, then the lanes are added
// as a binary tree.
double dot(const float* a, const float* b, int64_t n);

// The same for two times two rows, which meet in registers: out[i][j] = dot(a[i], b[j]).
void dot_2x2(const float* const a[2], const float* const b[2], int64_t n, double out[2][2]);

// sum[k] += factor * b[k]
void add_scaled(double* sum, float factor, const float* b, int64_t n);

// store(i, j, dot(a(i), b(j))) for all i < rows_a, j < rows_b, where a(i) and b(j) are the rows' first elements.
template <typename A, typename B, typename Store>
void dots(int64_t rows_a, A&& a, int64_t rows_b, B&& b, int64_t n, Store&& store) {
  for (int64_t i = 0; i < rows_a; i += 2) {
    for (int64_t j = 0; j < rows_b; j += 2) {
      if (i + 1 < rows_a && j + 1 < rows_b) {
        const float* const x[2] = {a(i), a(i + 1)};
        const float* const y[2] = {b(j), b(j + 1)};
        double out[2][2];
        dot_2x2(x, y, n, out);
        for (int k = 0; k < 4; ++k) store(i + k / 2, j + k % 2, out[k / 2][k % 2]);
        continue;
      }
      for (int64_t k = i; k < i + 2 && k < rows_a; ++k) {
        for (int64_t l = j; l < j + 2 && l < rows_b; ++l) store(k, l, dot(a(k), b(l), n));
      }
    }
  }
}

}  // namespace deepinfer::kernels::ref
