#include "kernels/ref/dot.h"

#include <cstring>

// The same source is compiled for several vector widths; without contraction all of them give the same bits. Sanitizers
// do not get along with functions that are chosen by the dynamic linker.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DI_REF_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DI_REF_WIDTHS
#endif

namespace deepinfer::kernels::ref {
namespace {

constexpr int kLanes = 32;  // four vectors of eight doubles: enough independent additions to hide their latency
using Double8 = double __attribute__((vector_size(64)));

__attribute__((always_inline)) inline void add_products(Double8& sum, const double* a, const double* b) {
  Double8 x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  sum += x * y;
}

}  // namespace

DI_REF_WIDTHS double dot(const double* a, const double* b, int64_t n) {
  Double8 sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    add_products(sum0, a + k, b + k);
    add_products(sum1, a + k + 8, b + k + 8);
    add_products(sum2, a + k + 16, b + k + 16);
    add_products(sum3, a + k + 24, b + k + 24);
  }
  double lanes[kLanes];
  const Double8 sums[] = {sum0, sum1, sum2, sum3};
  std::memcpy(lanes, sums, sizeof lanes);
  for (; k < n; ++k) lanes[k % kLanes] += a[k] * b[k];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

DI_REF_WIDTHS void add_scaled(double* sum, double factor, const double* b, int64_t n) {
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    Double8 x, s;
    std::memcpy(&x, b + k, sizeof x);
    std::memcpy(&s, sum + k, sizeof s);
    s += factor * x;
    std::memcpy(sum + k, &s, sizeof s);
  }
  for (; k < n; ++k) sum[k] += factor * b[k];
}

}  // namespace deepinfer::kernels::ref
