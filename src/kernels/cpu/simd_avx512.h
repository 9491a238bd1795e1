// Sixteen-lane vectors with AVX-512 (F, BW, DQ, VL, VBMI, VNNI). See simd.h for what each function does.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_bytes.h"
#include "tensor/dtype.h"

namespace deepinfer::kernels::cpu {
namespace {

using VF = __m512;
using VI = __m512i;
using VM = __mmask16;

DI_INLINE VM first_lanes(int n) {
  return static_cast<VM>((1u << n) - 1);
}

DI_INLINE VF load(const float* p) {
  return _mm512_loadu_ps(p);
}
DI_INLINE VF load_n(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
DI_INLINE void store(float* p, VF v) {
  _mm512_storeu_ps(p, v);
}
DI_INLINE void store_n(float* p, VF v, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
DI_INLINE VF set(float v) {
  return _mm512_set1_ps(v);
}
DI_INLINE VF zero() {
  return _mm512_setzero_ps();
}
DI_INLINE VF add(VF a, VF b) {
  return _mm512_add_ps(a, b);
}
DI_INLINE VF sub(VF a, VF b) {
  return _mm512_sub_ps(a, b);
}
DI_INLINE VF mul(VF a, VF b) {
  return _mm512_mul_ps(a, b);
}
DI_INLINE VF div(VF a, VF b) {
  return _mm512_div_ps(a, b);
}
DI_INLINE VF fma(VF a, VF b, VF c) {
  return _mm512_fmadd_ps(a, b, c);
}
DI_INLINE VF vmin(VF a, VF b) {
  return _mm512_min_ps(a, b);
}
DI_INLINE VF vmax(VF a, VF b) {
  return _mm512_max_ps(a, b);
}
DI_INLINE VF vsqrt(VF a) {
  return _mm512_sqrt_ps(a);
}
DI_INLINE VF round_to_integer(VF a) {
  return _mm512_roundscale_ps(a, 0);
}
DI_INLINE VM less(VF a, VF b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
DI_INLINE VF pick(VM m, VF a, VF b) {
  return _mm512_mask_blend_ps(m, b, a);
}

// a 2^n for whole n.
DI_INLINE VF times_power_of_two(VF a, VF n) {
  return _mm512_scalef_ps(a, n);
}

DI_INLINE VI bits(VF a) {
  return _mm512_castps_si512(a);
}
DI_INLINE VF as_float(VI a) {
  return _mm512_castsi512_ps(a);
}
DI_INLINE VI loadi(const void* p) {
  return _mm512_loadu_si512(p);
}
DI_INLINE void storei(void* p, VI v) {
  _mm512_storeu_si512(p, v);
}
DI_INLINE VI seti(int32_t v) {
  return _mm512_set1_epi32(v);
}
DI_INLINE VI zeroi() {
  return _mm512_setzero_si512();
}
DI_INLINE VI addi(VI a, VI b) {
  return _mm512_add_epi32(a, b);
}
DI_INLINE VI subi(VI a, VI b) {
  return _mm512_sub_epi32(a, b);
}
DI_INLINE VI andi(VI a, VI b) {
  return _mm512_and_si512(a, b);
}
DI_INLINE VI ori(VI a, VI b) {
  return _mm512_or_si512(a, b);
}
DI_INLINE VI xori(VI a, VI b) {
  return _mm512_xor_si512(a, b);
}
DI_INLINE VI maxu(VI a, VI b) {
  return _mm512_max_epu32(a, b);
}
template <int kBits>
DI_INLINE VI slli(VI a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
DI_INLINE VI srli(VI a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
DI_INLINE VI srai(VI a) {
  return _mm512_srai_epi32(a, kBits);
}
DI_INLINE VI pick_int(VM m, VI a, VI b) {
  return _mm512_mask_blend_epi32(m, b, a);
}
DI_INLINE VI to_int(VF a) {
  return _mm512_cvtps_epi32(a);
}
DI_INLINE VF to_float(VI a) {
  return _mm512_cvtepi32_ps(a);
}

DI_INLINE float reduce(VF v) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
DI_INLINE float reduce_max(VF v) {
  return _mm512_reduce_max_ps(v);
}
DI_INLINE int32_t reducei(VI v) {
  return _mm512_reduce_add_epi32(v);
}
DI_INLINE bool any_less(VF a, VF b) {
  return less(a, b) != 0;
}
DI_INLINE VM equal(VI a, VI b) {
  return _mm512_cmpeq_epi32_mask(a, b);
}
DI_INLINE VM above(VI a, VI b) {
  return _mm512_cmpgt_epu32_mask(a, b);
}  // unsigned
DI_INLINE uint32_t lane_mask(VM m) {
  return m;
}
// Appends the numbers base + i of the set lanes i at `to`, which has room for 16; returns how many.
DI_INLINE int append_lanes(int32_t* to, VM m, int32_t base) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lane, _mm512_set1_epi32(base))));
  return __builtin_popcount(m);
}

DI_INLINE VI load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Sixteen e4m3 codes as floats: moved to the places of fp16, whose exponents count from 2^-8 of it. Exact.
DI_INLINE VF load_e4m3(const uint8_t* p) {
  const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return mul(_mm512_cvtph_ps(half), set(0x1p8f));
}
DI_INLINE void store_u8(uint8_t* p, VI v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
DI_INLINE VF load_bf16(const bf16* p) {
  return as_float(slli<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
}
DI_INLINE VF load_bf16_n(const bf16* p, int n) {
  return as_float(slli<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p))));
}
// Sixteen int8 of columns 0 .. 15, in each eight the even ones first.
DI_INLINE void store_s8_even_odd(int8_t* p, VI v) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(v), order));
}
// Sixteen int16 of columns 0 .. 15, in each four in the order 0, 2, 1, 3.
DI_INLINE void store_s16_even_odd(int16_t* p, VI v) {
  __m256i w = _mm512_cvtepi32_epi16(v);
  w = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(w, 0xD8), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w);
}

DI_INLINE VF e2m1_value(VI code) {
  return _mm512_permutexvar_ps(
      code, _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f));
}
// The same of the four low bits of each lane.
DI_INLINE VF e2m1_of_low_bits(VI code) {
  return e2m1_value(code);  // vpermps looks at no other bits
}
// The sixteen nibbles of 8 bytes, low ones first, in the low four bits of the lanes; other bits are of no use.
DI_INLINE VI load_nibbles(const uint8_t* p) {
  // The low byte of each lane gets eight bits from its nibble on.
  const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
  const __m512i all = _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm512_multishift_epi64_epi8(from, all);
}
// Repeats each of eight floats twice: a a b b ...
DI_INLINE VF load_pairs(const float* p) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
// Two floats eight times.
DI_INLINE VF broadcast_pair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_castpd_ps(_mm512_set1_pd(pair));
}
// Sums of neighbouring lanes: those of a, then those of b.
DI_INLINE VF add_pairs(VF a, VF b) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  return _mm512_add_ps(_mm512_permutex2var_ps(a, evens, b), _mm512_permutex2var_ps(a, odds, b));
}
DI_INLINE VF swap_halves(VF v) {
  return _mm512_shuffle_f32x4(v, v, 0x4E);
}
DI_INLINE void store_half(float* p, float v) {
  _mm256_storeu_ps(p, _mm256_set1_ps(v));
}
DI_INLINE VF swap_pairs(VF v) {
  return _mm512_permute_ps(v, 0xB1);
}

// ---- for products ------------------------------------------------------------------------------------------------

DI_INLINE VI dot_u8s8(VI sum, VI u, VI s) {
  return _mm512_dpbusd_epi32(sum, u, s);
}
DI_INLINE VI dot_s16(VI sum, VI a, VI b) {
  return _mm512_dpwssd_epi32(sum, a, b);
}
DI_INLINE VI broadcast32(const void* p) {
  return _mm512_set1_epi32(*static_cast<const int32_t*>(p));
}

DI_INLINE VI load_4x16(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  auto piece = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  VI v = _mm512_castsi128_si512(piece(a));
  v = _mm512_inserti32x4(v, piece(b), 1);
  v = _mm512_inserti32x4(v, piece(c), 2);
  return _mm512_inserti32x4(v, piece(d), 3);
}
DI_INLINE VI zip_lo32(VI a, VI b) {
  return _mm512_unpacklo_epi32(a, b);
}
DI_INLINE VI zip_hi32(VI a, VI b) {
  return _mm512_unpackhi_epi32(a, b);
}
DI_INLINE VI zip_lo64(VI a, VI b) {
  return _mm512_unpacklo_epi64(a, b);
}
DI_INLINE VI zip_hi64(VI a, VI b) {
  return _mm512_unpackhi_epi64(a, b);
}

// The four 128-bit quarters of a vector.
template <int kQuarter>
DI_INLINE __m128 quarter(VF v) {
  return _mm512_extractf32x4_ps(v, kQuarter);
}
// Each of four floats, or of four integers, four times: a quarter each.
DI_INLINE VF spread4(const float* p) {
  const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(quarters, _mm512_castps128_ps512(_mm_loadu_ps(p)));
}
DI_INLINE VI spread4(const int32_t* p) {
  const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_epi32(quarters,
                                  _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Lane 4 c + r = byte c of row r, for four rows `stride` bytes apart.
DI_INLINE VI load_bytes_4x4(const uint8_t* p, int64_t stride) {
  return _mm512_cvtepu8_epi32(gather_4x4(p, stride));
}
// Adds the neighbouring quarter: 0 + 1 in both of the first two, 2 + 3 in the others.
DI_INLINE VI add_neighbour_quarter(VI v) {
  return _mm512_add_epi32(v, _mm512_shuffle_i32x4(v, v, 0xB1));
}
// Lanes of 128 bytes: those of even and of odd number.
DI_INLINE void split_lanes(const void* p, VI& even, VI& odd) {
  const __m512i a = loadi(p), b = loadi(static_cast<const char*>(p) + 64);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_epi32(a, evens, b);
  odd = _mm512_permutex2var_epi32(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b);
}

// vpermb looks at six index bits; the table repeats, so that the neighbour's bits do not matter.
struct Fp4Codec {
  __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  DI_INLINE VI even(VI w) const { return _mm512_permutexvar_epi8(w, table); }
  DI_INLINE VI odd(VI w) const { return _mm512_permutexvar_epi8(_mm512_srli_epi16(w, 4), table); }
};

// Byte tables of round(64 |v|) for the 128 magnitudes; vpermi2b looks at seven index bits, so the sign does not matter.
struct Fp8Codec {
  __m512i low0, low1, high0, high1;
  explicit DI_INLINE Fp8Codec(const uint16_t* magnitudes) {
    uint8_t low[128], high[128];
    for (int i = 0; i < 128; ++i) {
      low[i] = static_cast<uint8_t>(magnitudes[i] & 255);
      high[i] = static_cast<uint8_t>(magnitudes[i] >> 8);
    }
    low0 = loadi(low), low1 = loadi(low + 64), high0 = loadi(high), high1 = loadi(high + 64);
  }
  DI_INLINE void decode(VI w, VI& even, VI& odd) const {
    constexpr __mmask64 kHighBytes = 0xAAAAAAAAAAAAAAAAull;
    const __m512i low = _mm512_permutex2var_epi8(low0, w, low1), high = _mm512_permutex2var_epi8(high0, w, high1);
    const __m512i e = _mm512_mask_blend_epi8(kHighBytes, low, _mm512_slli_epi16(high, 8));
    const __m512i o = _mm512_mask_blend_epi8(kHighBytes, _mm512_srli_epi16(low, 8), high);
    even = _mm512_mask_sub_epi16(e, _mm512_movepi16_mask(_mm512_slli_epi16(w, 8)), _mm512_setzero_si512(), e);
    odd = _mm512_mask_sub_epi16(o, _mm512_movepi16_mask(w), _mm512_setzero_si512(), o);
  }
};

DI_INLINE void prefetch_l1(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
DI_INLINE void prefetch_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
