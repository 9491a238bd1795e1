// Sums of products in double precision, in an order that never depends on how the work was cut.
#pragma once

#include <cstdint>

namespace deepinfer::kernels::ref {

// sum over k of a[k] b[k]. Lane l of 32 adds the products with k mod 32 == l in ascending k, then the lanes are added
// as a binary tree. The product of two floats is exact in double, so the sum is as good as exact for every length we
// meet.
double dot(const float* a, const float* b, int64_t n);

// sum[k] += factor * b[k]
void add_scaled(double* sum, float factor, const float* b, int64_t n);

}  // namespace deepinfer::kernels::ref
