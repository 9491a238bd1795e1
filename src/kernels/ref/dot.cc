#include "kernels/ref/dot.h"

#include <cstring>

// The same source is compiled for several vector widths. All of them give the same bits: the products are exact, so it
// does not matter whether a compiler fuses them with the additions. Sanitizers do not get along with functions that are
// chosen by the dynamic linker.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DI_REF_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DI_REF_WIDTHS
#endif
#define DI_REF_INLINE __attribute__((always_inline)) inline

namespace deepinfer::kernels::ref {
namespace {

constexpr int kLanes = 32, kVectors = 4;  // enough independent additions to hide their latency
using Double8 = double __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32)));

// Vectors stay behind references: passed by value they would tie the interface to one instruction set.
DI_REF_INLINE void widen(const float* p, Double8& v) {
  Float8 narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  v = __builtin_convertvector(narrow, Double8);
}

// Adds the products past `k`, then the lanes.
DI_REF_INLINE double finish(const Double8* sums, const float* a, const float* b, int64_t k, int64_t n) {
  double lanes[kLanes];
  std::memcpy(lanes, sums, sizeof lanes);
  for (; k < n; ++k) lanes[k % kLanes] += static_cast<double>(a[k]) * b[k];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace

DI_REF_WIDTHS double dot(const float* a, const float* b, int64_t n) {
  Double8 sum[kVectors] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Double8 x, y;
      widen(a + k + 8 * v, x);
      widen(b + k + 8 * v, y);
      sum[v] += x * y;
    }
  }
  return finish(sum, a, b, k, n);
}

DI_REF_WIDTHS void dot_2x2(const float* const a[2], const float* const b[2], int64_t n, double out[2][2]) {
  Double8 sum[2][2][kVectors] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Double8 x0, x1, y0, y1;
      widen(a[0] + k + 8 * v, x0);
      widen(a[1] + k + 8 * v, x1);
      widen(b[0] + k + 8 * v, y0);
      widen(b[1] + k + 8 * v, y1);
      sum[0][0][v] += x0 * y0;
      sum[0][1][v] += x0 * y1;
      sum[1][0][v] += x1 * y0;
      sum[1][1][v] += x1 * y1;
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) out[i][j] = finish(sum[i][j], a[i], b[j], k, n);
  }
}

DI_REF_WIDTHS void add_scaled(double* sum, float factor, const float* b, int64_t n) {
  const double wide = factor;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    Double8 x, s;
    widen(b + k, x);
    std::memcpy(&s, sum + k, sizeof s);
    s += wide * x;
    std::memcpy(sum + k, &s, sizeof s);
  }
  for (; k < n; ++k) sum[k] += wide * b[k];
}

}  // namespace deepinfer::kernels::ref
