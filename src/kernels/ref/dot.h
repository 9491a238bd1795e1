// Sums of products in double precision, in an order that never depends on how the work was cut.
//
// The product of two floats is exact in double, so these sums are as good as exact for every length that we meet.
#pragma once

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

// The two below carry nearly all the work and run on widened copies.
inline std::vector<double> widened(std::span<const float> x) {
  return {x.begin(), x.end()};
}

// Sum over k of a[k] b[k]. Lane l of 32 adds the products with k mod 32 == l in ascending k, then the lanes are added
// as a binary tree.
double dot(const double* a, const double* b, int64_t n);

// sum[k] += factor * b[k]
void add_scaled(double* sum, double factor, const double* b, int64_t n);

}  // namespace deepinfer::kernels::ref
