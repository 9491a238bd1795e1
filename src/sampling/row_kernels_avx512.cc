// 16 ids an instruction. The same operations in the same order per id as the portable loops; only masses are added
// across lanes, and those are integers.
#include <limits>

#include "sampling/row_kernels.h"

#if defined(__x86_64__)

// g++ 12 warns inside its own header about operands that are undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#define DI_WIDE __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define DI_WIDE_INLINE inline __attribute__((always_inline, target("avx512f,avx512dq,avx512bw,avx512vl,fma")))

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Ids [id, id + 16) that exist and are allowed. In a whole vector without a mask all of them, known when compiled.
template <bool kIsWhole = false>
DI_WIDE_INLINE __mmask16 lanes_at(const uint32_t* mask, int id, int vocab) {
  uint32_t lanes = kIsWhole || vocab - id >= 16 ? 0xffffu : (1u << (vocab - id)) - 1;
  if (mask != nullptr) lanes &= mask[id >> 5] >> (id & 16);
  return static_cast<__mmask16>(lanes);
}
DI_WIDE_INLINE __mmask16 lanes_in_row(int id, int vocab) {
  return lanes_at(nullptr, id, vocab);
}

template <bool kIsWhole>
DI_WIDE_INLINE __m512 max_step(const float* logits, const uint32_t* mask, int id, int vocab, __m512 top,
                               __mmask16& invalid) {
  const __m512 minus = _mm512_set1_ps(-kInfinity);
  __m512 z = _mm512_mask_loadu_ps(minus, lanes_at<kIsWhole>(nullptr, id, vocab), logits + id);
  invalid |= _mm512_cmp_ps_mask(z, _mm512_set1_ps(kInfinity), _CMP_NLT_UQ);
  if (mask != nullptr) z = _mm512_mask_mov_ps(minus, lanes_at<kIsWhole>(mask, id, vocab), z);
  return _mm512_max_ps(z, top);  // a NaN in z is replaced by top
}

DI_WIDE float wide_max(const float* logits, const uint32_t* mask, int vocab, float* block_max, bool* is_valid) {
  __m512 best = _mm512_set1_ps(-kInfinity);
  __mmask16 invalid = 0;
  for (int begin = 0; begin < vocab; begin += kBlockIds) {
    __m512 top = _mm512_set1_ps(-kInfinity);
    if (begin + kBlockIds <= vocab) {
      for (int i = 0; i < kBlockIds; i += 16) top = max_step<true>(logits, mask, begin + i, vocab, top, invalid);
    } else {
      for (int id = begin; id < vocab; id += 16) top = max_step<false>(logits, mask, id, vocab, top, invalid);
    }
    if (block_max != nullptr) block_max[begin / kBlockIds] = _mm512_reduce_max_ps(top);
    best = _mm512_max_ps(best, top);
  }
  *is_valid = invalid == 0;
  return _mm512_reduce_max_ps(best);
}

DI_WIDE int wide_first_equal(const float* logits, const uint32_t* mask, int vocab, float value) {
  const __m512 wanted = _mm512_set1_ps(value);
  for (int id = 0; id < vocab; id += 16) {
    __mmask16 lanes = lanes_at(mask, id, vocab);
    __mmask16 hits = _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, logits + id), wanted, _CMP_EQ_OQ);
    if (hits != 0) return id + __builtin_ctz(hits);
  }
  return -1;
}

// weight_of for the lanes in `live`, 0 elsewhere.
DI_WIDE_INLINE __m512 weights_of(__m512 x, __mmask16 live) {
  const __m512 round = _mm512_set1_ps(kRound);
  __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), round);
  __m512 k = _mm512_sub_ps(shifted, round);
  __m512 r = _mm512_fmadd_ps(k, _mm512_set1_ps(-kLn2High), x);
  r = _mm512_fmadd_ps(k, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_set1_ps(kExpPoly[0]);
  for (int i = 1; i < 6; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpPoly[i]));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_castsi512_ps(
      _mm512_maskz_add_epi32(live, _mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

DI_WIDE_INLINE __m512i add_masses(__m512i sum, __m512 w) {
  __m512 scaled = _mm512_mul_ps(w, _mm512_set1_ps(kMassScale));
  sum = _mm512_add_epi64(sum, _mm512_cvttps_epi64(_mm512_castps512_ps256(scaled)));
  return _mm512_add_epi64(sum, _mm512_cvttps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
}

// The row's constants, and what is summed up over its vectors.
struct WideRow {
  __m512 max, scale, cut, least;
  __m512i iota, sum;
  int kept;
};

DI_WIDE_INLINE WideRow start_row(const GatherParams& p) {
  return {_mm512_set1_ps(p.max),
          _mm512_set1_ps(p.inverse_temperature),
          _mm512_set1_ps(p.cut),
          _mm512_set1_ps(kMinExponent),
          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
          _mm512_setzero_si512(),
          0};
}

template <bool kIsWhole>
DI_WIDE_INLINE void gather_step(const GatherParams& p, const uint32_t* allowed, int id, WideRow& row) {
  __mmask16 lanes = lanes_at<kIsWhole>(allowed, id, p.vocab);
  __m512 z = _mm512_maskz_loadu_ps(lanes, p.logits + id);
  __m512 x = _mm512_mul_ps(_mm512_sub_ps(z, row.max), row.scale);
  __mmask16 live = _mm512_mask_cmp_ps_mask(lanes, x, row.least, _CMP_GE_OQ);
  __mmask16 keep = _mm512_mask_cmp_ps_mask(lanes, z, row.cut, _CMP_GE_OQ);
  if ((live | keep) == 0) return;
  __m512 w = weights_of(x, live);
  row.sum = add_masses(row.sum, w);
  if (keep == 0) return;
  __m512i ids = _mm512_add_epi32(row.iota, _mm512_set1_epi32(id));
  _mm512_storeu_si512(p.ids + row.kept, _mm512_maskz_compress_epi32(keep, ids));
  _mm512_storeu_ps(p.kept_logits + row.kept, _mm512_maskz_compress_ps(keep, z));
  _mm512_storeu_ps(p.weights + row.kept, _mm512_maskz_compress_ps(keep, w));
  row.kept += __builtin_popcount(keep);
}

template <bool kIsMasked>
DI_WIDE_INLINE int gather_body(const GatherParams& p, uint64_t* total) {
  const uint32_t* allowed = kIsMasked ? p.mask : nullptr;
  WideRow row = start_row(p);
  int id = 0;
  for (; id + 16 <= p.vocab; id += 16) gather_step<true>(p, allowed, id, row);
  if (id < p.vocab) gather_step<false>(p, allowed, id, row);
  *total = static_cast<uint64_t>(_mm512_reduce_add_epi64(row.sum));
  return row.kept;
}

DI_WIDE int wide_gather(const GatherParams& p, uint64_t* total) {
  return p.mask == nullptr ? gather_body<false>(p, total) : gather_body<true>(p, total);
}

template <bool kIsWhole>
DI_WIDE_INLINE void weigh_step(const GatherParams& p, const uint32_t* allowed, int id, WideRow& row) {
  __mmask16 lanes = lanes_at<kIsWhole>(allowed, id, p.vocab);
  __m512 z = _mm512_maskz_loadu_ps(lanes, p.logits + id);
  __m512 x = _mm512_mul_ps(_mm512_sub_ps(z, row.max), row.scale);
  __m512 w = weights_of(x, _mm512_mask_cmp_ps_mask(lanes, x, row.least, _CMP_GE_OQ));
  _mm512_mask_storeu_ps(p.weights + id, lanes_at<kIsWhole>(nullptr, id, p.vocab), w);
  row.sum = add_masses(row.sum, w);
}

template <bool kIsMasked>
DI_WIDE_INLINE uint64_t weigh_body(const GatherParams& p) {
  const uint32_t* allowed = kIsMasked ? p.mask : nullptr;
  WideRow row = start_row(p);
  int id = 0;
  for (; id + 16 <= p.vocab; id += 16) weigh_step<true>(p, allowed, id, row);
  if (id < p.vocab) weigh_step<false>(p, allowed, id, row);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(row.sum));
}

DI_WIDE uint64_t wide_weigh(const GatherParams& p) {
  return p.mask == nullptr ? weigh_body<false>(p) : weigh_body<true>(p);
}

// One Philox block a lane.
struct WideBlock {
  __m512i word[4];
};

// Ten rounds on every second lane: the products fill 64 bits, of which a multiplication reads the lower half, so what
// stands in the upper halves need not be cleared in between.
DI_WIDE_INLINE WideBlock half_philox(const Race& r, __m512i group) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxM0), m1 = _mm512_set1_epi64(kPhiloxM1);
  __m512i c0 = _mm512_set1_epi32(static_cast<int>(r.index)), c1 = _mm512_set1_epi32(static_cast<int>(r.purpose));
  __m512i c2 = group, c3 = _mm512_set1_epi32(static_cast<int>(r.choice));
  uint32_t k0 = r.key0, k1 = r.key1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    __m512i product0 = _mm512_mul_epu32(c0, m0), product1 = _mm512_mul_epu32(c2, m1);
    c0 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(product1, 32), c1, _mm512_set1_epi32(static_cast<int>(k0)),
                                   0x96);  // a ^ b ^ c
    c2 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(product0, 32), c3, _mm512_set1_epi32(static_cast<int>(k1)), 0x96);
    c1 = product1;
    c3 = product0;
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return {{c0, c1, c2, c3}};
}

DI_WIDE_INLINE WideBlock wide_philox(const Race& r, __m512i group) {
  WideBlock even = half_philox(r, group), odd = half_philox(r, _mm512_srli_epi64(group, 32));
  for (int j = 0; j < 4; ++j)
    even.word[j] = _mm512_mask_mov_epi32(even.word[j], 0xaaaa, _mm512_slli_epi64(odd.word[j], 32));
  return even;
}

DI_WIDE_INLINE __m256 half_uniform(__m256i words) {
  __m512d exact = _mm512_add_pd(_mm512_cvtepu32_pd(words), _mm512_set1_pd(0.5));
  return _mm512_cvtpd_ps(_mm512_mul_pd(exact, _mm512_set1_pd(0x1p-32)));
}

DI_WIDE_INLINE __m512 wide_clock(__m512i words) {
  __m512 u = _mm512_insertf32x8(_mm512_castps256_ps512(half_uniform(_mm512_castsi512_si256(words))),
                                half_uniform(_mm512_extracti64x4_epi64(words, 1)), 1);
  u = _mm512_min_ps(_mm512_max_ps(u, _mm512_set1_ps(0x1p-33f)), _mm512_set1_ps(1.0f - 0x1p-24f));
  const __m512 one = _mm512_set1_ps(1.0f);
  __mmask16 large = _mm512_cmp_ps_mask(u, _mm512_set1_ps(kLogSplit), _CMP_GE_OQ);
  __m512i bits = _mm512_castps_si512(_mm512_sub_ps(one, u));
  __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
  __m512 scaled = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
  __m512 f = _mm512_xor_ps(u, _mm512_set1_ps(-0.0f));
  f = _mm512_mask_sub_ps(f, large, scaled, one);
  __m512 k = _mm512_maskz_cvtepi32_ps(large, e);
  __m512 p = _mm512_set1_ps(kLogPoly[0]);
  for (int i = 1; i < 9; ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kLogPoly[i]));
  __m512 square = _mm512_mul_ps(f, f);
  __m512 tail = _mm512_fmadd_ps(_mm512_mul_ps(p, f), square, _mm512_mul_ps(k, _mm512_set1_ps(kLn2Low)));
  tail = _mm512_fmadd_ps(_mm512_set1_ps(-0.5f), square, tail);
  __m512 log = _mm512_fmadd_ps(k, _mm512_set1_ps(kLn2High), _mm512_add_ps(f, tail));
  return _mm512_xor_ps(log, _mm512_set1_ps(-0.0f));
}

struct WideBest {
  __m512 time;
  __m512i at;
};

DI_WIDE_INLINE void update(WideBest* best, __m512 time, __m512i at, __mmask16 live) {
  __mmask16 better = _mm512_mask_cmp_ps_mask(live, time, best->time, _CMP_LT_OQ);
  best->time = _mm512_mask_mov_ps(best->time, better, time);
  best->at = _mm512_mask_mov_epi32(best->at, better, at);
}

// A clock is never below its u, of which this is a lower bound; the margin covers all roundings.
DI_WIDE_INLINE __m512 earliest(__m512i words) {
  return _mm512_mul_ps(_mm512_cvtepu32_ps(words), _mm512_set1_ps(0.999f * 0x1p-32f));
}

// Lanes that may beat the best so far: E / w > best for certain where u > best x w.
DI_WIDE_INLINE __mmask16 contenders(const WideBest& best, __m512i words, __m512 w, __mmask16 lanes) {
  __mmask16 live = _mm512_mask_cmp_ps_mask(lanes, w, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mask_cmp_ps_mask(live, earliest(words), _mm512_mul_ps(best.time, w), _CMP_LE_OQ);
}

DI_WIDE_INLINE int winner_of(const WideBest& best) {
  float least = _mm512_reduce_min_ps(best.time);
  if (!(least < kInfinity)) return -1;
  __mmask16 ties = _mm512_cmp_ps_mask(best.time, _mm512_set1_ps(least), _CMP_EQ_OQ);
  return _mm512_mask_reduce_min_epi32(ties, best.at);
}

// Lane i meets ids 4 (g + i) .. 4 (g + i) + 3, so 64 weights in a row; ids grow along a lane, hence strict "<" keeps
// the lowest.
DI_WIDE int dense_race(const Race& r, const float* weights, int count) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i by_four = _mm512_and_si512(_mm512_slli_epi32(iota, 2), _mm512_set1_epi32(31));
  WideBest best{_mm512_set1_ps(kInfinity), _mm512_set1_epi32(-1)};
  // No clock is below 2^-33: a weight under 2^-33 / (best time) cannot win. The margin covers the rounding of the
  // division.
  float floor = 0.0f, least = kInfinity;
  for (int id = 0; id < count; id += kBlockIds) {
    __m512 w[4];
    for (int i = 0; i < 4; ++i) {
      int at = id + 16 * i;
      w[i] = at < count ? _mm512_maskz_loadu_ps(lanes_in_row(at, count), weights + at) : _mm512_setzero_ps();
    }
    __m512 top = _mm512_max_ps(_mm512_max_ps(w[0], w[1]), _mm512_max_ps(w[2], w[3]));
    if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(floor), _CMP_GT_OQ) == 0) continue;
    WideBlock block = wide_philox(r, _mm512_add_epi32(iota, _mm512_set1_epi32(id >> 2)));
    // As for contenders below: if the earliest clock with the largest weight is too late, all are.
    __m512i early = _mm512_min_epu32(_mm512_min_epu32(block.word[0], block.word[1]),
                                     _mm512_min_epu32(block.word[2], block.word[3]));
    const float latest = least * _mm512_reduce_max_ps(top);
    if (_mm512_cmp_ps_mask(earliest(early), _mm512_set1_ps(latest), _CMP_LE_OQ) == 0) continue;
    for (int j = 0; j < 4; ++j) {
      __m512i pick = _mm512_add_epi32(by_four, _mm512_set1_epi32(j));
      __m512 mine = _mm512_mask_mov_ps(_mm512_permutex2var_ps(w[0], pick, w[1]), 0xff00,
                                       _mm512_permutex2var_ps(w[2], pick, w[3]));
      __mmask16 live = contenders(best, block.word[j], mine, 0xffff);
      if (live == 0) continue;
      __m512 time = _mm512_maskz_div_ps(live, wide_clock(block.word[j]), mine);
      update(&best, time, _mm512_add_epi32(_mm512_slli_epi32(iota, 2), _mm512_set1_epi32(id + j)), live);
    }
    least = _mm512_reduce_min_ps(best.time);
    floor = 0.99f * 0x1p-33f / least;
  }
  return winner_of(best);
}

DI_WIDE int sparse_race(const Race& r, const int32_t* ids, const float* weights, int count) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  WideBest best{_mm512_set1_ps(kInfinity), _mm512_set1_epi32(-1)};
  for (int i = 0; i < count; i += 16) {
    __mmask16 lanes = lanes_in_row(i, count);
    __m512i id = _mm512_maskz_loadu_epi32(lanes, ids + i);
    __m512 w = _mm512_maskz_loadu_ps(lanes, weights + i);
    WideBlock block = wide_philox(r, _mm512_srli_epi32(id, 2));
    __m512i which = _mm512_and_si512(id, _mm512_set1_epi32(3));
    __m512i word = block.word[0];
    for (int j = 1; j < 4; ++j)
      word = _mm512_mask_mov_epi32(word, _mm512_cmpeq_epi32_mask(which, _mm512_set1_epi32(j)), block.word[j]);
    __mmask16 live = contenders(best, word, w, lanes);
    if (live == 0) continue;
    update(&best, _mm512_maskz_div_ps(live, wide_clock(word), w), _mm512_add_epi32(iota, _mm512_set1_epi32(i)), live);
  }
  return winner_of(best);
}

DI_WIDE int wide_race(const Race& r, const int32_t* ids, const float* weights, int count) {
  return ids == nullptr ? dense_race(r, weights, count) : sparse_race(r, ids, weights, count);
}

constexpr RowKernels kWide{"avx512", wide_max, wide_first_equal, wide_gather, wide_weigh, wide_race};

}  // namespace

const RowKernels* avx512_kernels() {
  bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return runs ? &kWide : nullptr;
}

}  // namespace deepinfer::sampling

#else

namespace deepinfer::sampling {
const RowKernels* avx512_kernels() {
  return nullptr;
}
}  // namespace deepinfer::sampling

#endif
