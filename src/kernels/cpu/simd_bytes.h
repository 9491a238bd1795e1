// What both instruction sets have in common: 16-byte pieces, compiled anew for each set (hence no external names).
#pragma once

#include <immintrin.h>

#include <cstdint>

#define DI_INLINE inline __attribute__((always_inline))

namespace deepinfer::kernels::cpu {
namespace {

// Sixteen bytes: number 4 c + r is byte c of row r, for four rows `stride` bytes apart.
DI_INLINE __m128i gather_4x4(const uint8_t* p, int64_t stride) {
  int32_t rows[4];
  for (int r = 0; r < 4; ++r) __builtin_memcpy(&rows[r], p + r * stride, 4);
  const __m128i by_column = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm_shuffle_epi8(_mm_setr_epi32(rows[0], rows[1], rows[2], rows[3]), by_column);
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
