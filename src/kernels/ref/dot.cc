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
using Float8 = float __attribute__((vector_size(32)));
using Double8 = double __attribute__((vector_size(64)));

}  // namespace

DI_REF_WIDTHS double dot(const float* a, const float* b, int64_t n) {
  Double8 sum[kLanes / 8] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int i = 0; i < kLanes / 8; ++i) {
      Float8 x, y;
      std::memcpy(&x, a + k + 8 * i, sizeof x);
      std::memcpy(&y, b + k + 8 * i, sizeof y);
      sum[i] += __builtin_convertvector(x, Double8) * __builtin_convertvector(y, Double8);
    }
  }
  double lanes[kLanes];
  std::memcpy(lanes, sum, sizeof lanes);
  for (; k < n; ++k) lanes[k % kLanes] += static_cast<double>(a[k]) * b[k];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

DI_REF_WIDTHS void add_scaled(double* sum, float factor, const float* b, int64_t n) {
  const double scale = factor;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    Float8 x;
    Double8 s;
    std::memcpy(&x, b + k, sizeof x);
    std::memcpy(&s, sum + k, sizeof s);
    s += scale * __builtin_convertvector(x, Double8);
    std::memcpy(sum + k, &s, sizeof s);
  }
  for (; k < n; ++k) sum[k] += scale * b[k];
}

}  // namespace deepinfer::kernels::ref
