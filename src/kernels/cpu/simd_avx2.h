// Sixteen-lane vectors as pairs of AVX2 registers. See simd.h for what each function does.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd_bytes.h"
#include "tensor/dtype.h"

namespace deepinfer::kernels::cpu {
namespace {

struct VF {
  __m256 lo, hi;
};
struct VI {
  __m256i lo, hi;
};
using VM = VI;

#define DI_PAIR1(type, f, a) \
  type {                     \
    f((a).lo), f((a).hi)     \
  }
#define DI_PAIR2(type, f, a, b)          \
  type {                                 \
    f((a).lo, (b).lo), f((a).hi, (b).hi) \
  }

DI_INLINE VI lane_numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
DI_INLINE VM first_lanes(int n) {
  const __m256i count = _mm256_set1_epi32(n);
  const VI lane = lane_numbers();
  return {_mm256_cmpgt_epi32(count, lane.lo), _mm256_cmpgt_epi32(count, lane.hi)};
}

DI_INLINE VF load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
DI_INLINE VF load_n(const float* p, int n) {
  const VM m = first_lanes(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
DI_INLINE void store(float* p, VF v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
DI_INLINE void store_n(float* p, VF v, int n) {
  const VM m = first_lanes(n);
  _mm256_maskstore_ps(p, m.lo, v.lo);
  _mm256_maskstore_ps(p + 8, m.hi, v.hi);
}
DI_INLINE VF set(float v) {
  return {_mm256_set1_ps(v), _mm256_set1_ps(v)};
}
DI_INLINE VF zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
DI_INLINE VF add(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_add_ps, a, b);
}
DI_INLINE VF sub(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_sub_ps, a, b);
}
DI_INLINE VF mul(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_mul_ps, a, b);
}
DI_INLINE VF div(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_div_ps, a, b);
}
DI_INLINE VF fma(VF a, VF b, VF c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DI_INLINE VF vmin(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_min_ps, a, b);
}
DI_INLINE VF vmax(VF a, VF b) {
  return DI_PAIR2(VF, _mm256_max_ps, a, b);
}
DI_INLINE VF vsqrt(VF a) {
  return DI_PAIR1(VF, _mm256_sqrt_ps, a);
}
DI_INLINE VF round_to_integer(VF a) {
  return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)};
}
DI_INLINE VM less(VF a, VF b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
DI_INLINE VF pick(VM m, VF a, VF b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

DI_INLINE VI bits(VF a) {
  return DI_PAIR1(VI, _mm256_castps_si256, a);
}
DI_INLINE VF as_float(VI a) {
  return DI_PAIR1(VF, _mm256_castsi256_ps, a);
}
DI_INLINE VI loadi(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
DI_INLINE void storei(void* p, VI v) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, v.lo);
  _mm256_storeu_si256(q + 1, v.hi);
}
DI_INLINE VI seti(int32_t v) {
  return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}
DI_INLINE VI zeroi() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
DI_INLINE VI addi(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_add_epi32, a, b);
}
DI_INLINE VI subi(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_sub_epi32, a, b);
}
DI_INLINE VI andi(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_and_si256, a, b);
}
DI_INLINE VI ori(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_or_si256, a, b);
}
DI_INLINE VI xori(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_xor_si256, a, b);
}
DI_INLINE VI maxu(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_max_epu32, a, b);
}
template <int kBits>
DI_INLINE VI slli(VI a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
DI_INLINE VI srli(VI a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
DI_INLINE VI srai(VI a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
DI_INLINE VI pick_int(VM m, VI a, VI b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}
DI_INLINE VI to_int(VF a) {
  return DI_PAIR1(VI, _mm256_cvtps_epi32, a);
}
DI_INLINE VF to_float(VI a) {
  return DI_PAIR1(VF, _mm256_cvtepi32_ps, a);
}

DI_INLINE float reduce(VF v) {
  __m256 a = _mm256_add_ps(v.lo, v.hi);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
DI_INLINE float reduce_max(VF v) {
  __m256 a = _mm256_max_ps(v.lo, v.hi);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
DI_INLINE int32_t reducei(VI v) {
  __m256i a = _mm256_add_epi32(v.lo, v.hi);
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
}
DI_INLINE bool any_less(VF a, VF b) {
  const VM m = less(a, b);
  return !_mm256_testz_si256(_mm256_or_si256(m.lo, m.hi), _mm256_or_si256(m.lo, m.hi));
}

DI_INLINE VM equal(VI a, VI b) {
  return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)};
}
DI_INLINE VM above(VI a, VI b) {
  const VI top = seti(static_cast<int32_t>(0x80000000u)), x = xori(a, top), y = xori(b, top);
  return {_mm256_cmpgt_epi32(x.lo, y.lo), _mm256_cmpgt_epi32(x.hi, y.hi)};
}
DI_INLINE uint32_t lane_mask(VM m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.lo))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m.hi))) << 8;
}
DI_INLINE int append_lanes(int32_t* to, VM m, int32_t base) {
  int count = 0;
  for (uint32_t left = lane_mask(m); left != 0; left &= left - 1) to[count++] = base + __builtin_ctz(left);
  return count;
}

DI_INLINE VI load_u8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
DI_INLINE VF load_e4m3(const uint8_t* p) {
  const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  const VF v = {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  return mul(v, set(0x1p8f));
}
// The low 16 bits of each lane, in order.
DI_INLINE __m256i pack16(VI v) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v.lo, low), _mm256_and_si256(v.hi, low));
  return _mm256_permute4x64_epi64(packed, 0xD8);
}
DI_INLINE __m128i pack8(VI v) {
  const __m256i w = _mm256_and_si256(pack16(v), _mm256_set1_epi16(0xff));
  return _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}
DI_INLINE void store_u8(uint8_t* p, VI v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack8(v));
}
DI_INLINE VF load_bf16(const bf16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return as_float(
      slli<16>(VI{_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))}));
}
DI_INLINE VF load_bf16_n(const bf16* p, int n) {
  bf16 copy[16] = {};
  std::memcpy(copy, p, static_cast<size_t>(n) * sizeof(bf16));
  return load_bf16(copy);
}
DI_INLINE void store_s8_even_odd(int8_t* p, VI v) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(pack8(v), order));
}
DI_INLINE void store_s16_even_odd(int16_t* p, VI v) {
  __m256i w = pack16(v);
  w = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(w, 0xD8), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w);
}

DI_INLINE VF e2m1_value(VI code) {
  const __m256 magnitude = _mm256_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
  const VI sign = slli<28>(andi(code, seti(8)));
  const VF v = {_mm256_permutevar8x32_ps(magnitude, code.lo), _mm256_permutevar8x32_ps(magnitude, code.hi)};
  return as_float(ori(bits(v), sign));
}
DI_INLINE VF e2m1_of_low_bits(VI code) {
  return e2m1_value(code);  // the permutation looks at three bits, the sign is masked
}
DI_INLINE VI load_nibbles(const uint8_t* p) {
  int32_t half[2];
  std::memcpy(half, p, 8);
  const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), low = _mm256_set1_epi32(15);
  return {_mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(half[0]), shift), low),
          _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(half[1]), shift), low)};
}
// In two factors, since 2^128 is no float.
DI_INLINE VF times_power_of_two(VF a, VF n) {
  const VI e = to_int(n), half = srai<1>(e);
  const VF x = as_float(slli<23>(addi(half, seti(127)))), y = as_float(slli<23>(addi(subi(e, half), seti(127))));
  return mul(mul(a, x), y);
}
DI_INLINE VF load_pairs(const float* p) {
  const __m256 v = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
DI_INLINE VF broadcast_pair(const float* p) {
  double pair;
  std::memcpy(&pair, p, sizeof pair);
  const __m256 v = _mm256_castpd_ps(_mm256_set1_pd(pair));
  return {v, v};
}
DI_INLINE VF add_pairs(VF a, VF b) {
  auto sums = [](VF v) {
    const __m256 s = _mm256_hadd_ps(v.lo, v.hi);  // quarters in the order 0, 2, 1, 3
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xD8));
  };
  return {sums(a), sums(b)};
}
DI_INLINE VF swap_halves(VF v) {
  return {v.hi, v.lo};
}
DI_INLINE void store_half(float* p, float v) {
  _mm256_storeu_ps(p, _mm256_set1_ps(v));
}
DI_INLINE VF swap_pairs(VF v) {
  return {_mm256_permute_ps(v.lo, 0xB1), _mm256_permute_ps(v.hi, 0xB1)};
}

// ---- for products ------------------------------------------------------------------------------------------------

// Pair sums stay below 2 * 24 * 127, so that the 16-bit step of vpmaddubsw never saturates.
DI_INLINE __m256i dot_u8s8_half(__m256i sum, __m256i u, __m256i s) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
DI_INLINE VI dot_u8s8(VI sum, VI u, VI s) {
  return {dot_u8s8_half(sum.lo, u.lo, s.lo), dot_u8s8_half(sum.hi, u.hi, s.hi)};
}
DI_INLINE VI dot_s16(VI sum, VI a, VI b) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
DI_INLINE VI broadcast32(const void* p) {
  return seti(*static_cast<const int32_t*>(p));
}

DI_INLINE VI load_4x16(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  auto piece = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  return {_mm256_inserti128_si256(_mm256_castsi128_si256(piece(a)), piece(b), 1),
          _mm256_inserti128_si256(_mm256_castsi128_si256(piece(c)), piece(d), 1)};
}
DI_INLINE VI zip_lo32(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_unpacklo_epi32, a, b);
}
DI_INLINE VI zip_hi32(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_unpackhi_epi32, a, b);
}
DI_INLINE VI zip_lo64(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_unpacklo_epi64, a, b);
}
DI_INLINE VI zip_hi64(VI a, VI b) {
  return DI_PAIR2(VI, _mm256_unpackhi_epi64, a, b);
}

template <int kQuarter>
DI_INLINE __m128 quarter(VF v) {
  return _mm256_extractf128_ps(kQuarter < 2 ? v.lo : v.hi, kQuarter % 2);
}
DI_INLINE VI spread4(const int32_t* p) {
  const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
          _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))};
}
DI_INLINE VF spread4(const float* p) {
  const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(p));
  return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
          _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))};
}
DI_INLINE VI load_bytes_4x4(const uint8_t* p, int64_t stride) {
  const __m128i v = gather_4x4(p, stride);
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
DI_INLINE VI add_neighbour_quarter(VI v) {
  return {_mm256_add_epi32(v.lo, _mm256_permute2x128_si256(v.lo, v.lo, 1)),
          _mm256_add_epi32(v.hi, _mm256_permute2x128_si256(v.hi, v.hi, 1))};
}
DI_INLINE void split_lanes(const void* p, VI& even, VI& odd) {
  const VI a = loadi(p), b = loadi(static_cast<const char*>(p) + 64);
  auto join = [](__m256 v) { return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xD8); };
  const __m256 a0 = _mm256_castsi256_ps(a.lo), a1 = _mm256_castsi256_ps(a.hi);
  const __m256 b0 = _mm256_castsi256_ps(b.lo), b1 = _mm256_castsi256_ps(b.hi);
  even = {join(_mm256_shuffle_ps(a0, a1, 0x88)), join(_mm256_shuffle_ps(b0, b1, 0x88))};
  odd = {join(_mm256_shuffle_ps(a0, a1, 0xDD)), join(_mm256_shuffle_ps(b0, b1, 0xDD))};
}

struct Fp4Codec {
  __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  DI_INLINE VI look_up(VI w) const {
    const __m256i nibble = _mm256_set1_epi8(15);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(w.lo, nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(w.hi, nibble))};
  }
  DI_INLINE VI even(VI w) const { return look_up(w); }
  DI_INLINE VI odd(VI w) const { return look_up(srli<4>(w)); }
};

// No byte table of 128 entries here: the code becomes a float (see e4m3_value in simd.h) and that is rounded.
struct Fp8Codec {
  explicit DI_INLINE Fp8Codec(const uint16_t*) {}
  template <int kByte>
  static DI_INLINE VI value(VI w) {
    const VI top = slli<24 - 8 * kByte>(w);
    const VI magnitude = addi(srli<4>(andi(top, seti(0x7f000000))), seti(126 << 23));  // 2^6 times the value
    const VI sign = andi(top, seti(static_cast<int32_t>(0x80000000u)));
    const VF normal = as_float(magnitude), small = sub(as_float(addi(magnitude, seti(1 << 23))), set(1.f));
    return to_int(as_float(ori(bits(pick(less(normal, set(1.f)), small, normal)), sign)));
  }
  static DI_INLINE VI join(VI low, VI high) { return ori(andi(low, seti(0xffff)), slli<16>(high)); }
  DI_INLINE void decode(VI w, VI& even, VI& odd) const {
    even = join(value<0>(w), value<2>(w));
    odd = join(value<1>(w), value<3>(w));
  }
};

DI_INLINE void prefetch_l1(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
DI_INLINE void prefetch_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

#undef DI_PAIR1
#undef DI_PAIR2

}  // namespace
}  // namespace deepinfer::kernels::cpu
