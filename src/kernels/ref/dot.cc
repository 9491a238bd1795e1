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

constexpr int kLanes = 8;
using Double8 = double __attribute__((vector_size(64)));

// Vectors stay behind references: passed by value they would tie the interface to one instruction set.
DI_REF_INLINE void load(const double* p, Double8& v) {
  std::memcpy(&v, p, sizeof v);
}

// out[i][j] = row i of a [R, n] times row j of b [C, n].
template <int R, int C>
DI_REF_INLINE void tile(const double* a, const double* b, int64_t n, double out[][C]) {
  Double8 sum[R][C] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    Double8 y[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) load(b + j * n + k, y[j]);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      Double8 x;
      load(a + i * n + k, x);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sum[i][j] += x * y[j];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      double lanes[kLanes];
      std::memcpy(lanes, &sum[i][j], sizeof lanes);
      for (int64_t c = k; c < n; ++c) lanes[c - k] += a[i * n + c] * b[j * n + c];
      for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      out[i][j] = lanes[0];
    }
  }
}

}  // namespace

DI_REF_WIDTHS double dot(const double* a, const double* b, int64_t n) {
  double out[1][1];
  tile<1, 1>(a, b, n, out);
  return out[0][0];
}
DI_REF_WIDTHS void dot_1x4(const double* a, const double* b, int64_t n, double out[1][4]) {
  tile<1, 4>(a, b, n, out);
}
DI_REF_WIDTHS void dot_4x4(const double* a, const double* b, int64_t n, double out[4][4]) {
  tile<4, 4>(a, b, n, out);
}

DI_REF_WIDTHS void add_scaled(double* sum, float factor, const double* b, int64_t n) {
  const double wide = factor;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    Double8 x, s;
    load(b + k, x);
    load(sum + k, s);
    s += wide * x;
    std::memcpy(sum + k, &s, sizeof s);
  }
  for (; k < n; ++k) sum[k] += wide * b[k];
}

}  // namespace deepinfer::kernels::ref
