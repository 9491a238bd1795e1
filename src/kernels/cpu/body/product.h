// y = x W^T for a block of up to 64 weight rows and up to kMaxTokens rows of x.
//
//   A panel is 16 weight rows, one a lane. A chunk of columns of one or four panels is decoded into a 32 KiB buffer
//   that stays in the first-level cache, and all rows of x pass over it; so one row (decode) and many (prefill) run the
//   same code.
//
// Order of additions, the same for every number of rows, threads and chunks, and for every instruction set:
//   columns are taken in groups of 32. Inside a group
//     int8, int16: exact integers
//     f32:         two chains of fma, even columns and odd columns, from 0 in ascending order, then even + odd
//   then, group after group, acc = fma(group sum, weight scale * input scale, acc), from 0.
#pragma once

#include "kernels/cpu/body/declare.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int kChunkBytes = 32768;
#if defined(__AVX512VNNI__)
constexpr int kTileTokens = 6;  // 4 x 6 sums, 4 weights and a broadcast in 32 registers
#else
constexpr int kTileTokens = 2;
#endif

struct ChunkBuffer {
  alignas(64) uint8_t weights[kChunkBytes];
  alignas(64) float scales[kChunkBytes / 16];  // [group][panel][16], or [group][panel] for kInt16
};

// ---- decoding ----------------------------------------------------------------------------------------------------

// Rows of a panel. Rows beyond the end of the weight repeat the last one, which only the general loop below can do.
struct PanelRows {
  const uint8_t* base;
  int64_t stride, last;
  DI_INLINE PanelRows(const Weight& w, int64_t first) {
    stride = bytes_of_columns(w.kind, w.cols);
    base = static_cast<const uint8_t*>(w.codes) + first * stride;
    last = w.rows - 1 - first;
  }
  DI_INLINE bool is_whole() const { return last >= kPanel - 1; }
  DI_INLINE const uint8_t* row(int r) const { return base + (r < last ? r : last) * stride; }
};

// Sixteen rows at a fixed distance: every address is one of two bases plus s, 3 s, 5 s or 7 s times 1, 2 or 4, so that
// the loads need no address arithmetic. The compiler must not see that the odd multiples belong together.
struct Strides {
  int64_t s, s3, s5, s7;
  explicit DI_INLINE Strides(int64_t stride) : s(stride), s3(3 * stride), s5(5 * stride), s7(7 * stride) {
    asm volatile("" : "+r"(s), "+r"(s3), "+r"(s5), "+r"(s7));
  }
  template <int kRow>
  DI_INLINE const uint8_t* at(const uint8_t* low, const uint8_t* high) const {
    const uint8_t* p = kRow < 8 ? low : high;
    constexpr int r = kRow % 8;
    return r == 0   ? p
           : r == 1 ? p + s
           : r == 2 ? p + 2 * s
           : r == 3 ? p + s3
           : r == 4 ? p + 4 * s
           : r == 5 ? p + s5
           : r == 6 ? p + 2 * s3
                    : p + s7;
  }
  // out[c], lane r = bytes 4 c .. 4 c + 3 of row r
  DI_INLINE void transpose(const uint8_t* low, const uint8_t* high, VI* out) const {
    const VI v0 = load_4x16(at<0>(low, high), at<4>(low, high), at<8>(low, high), at<12>(low, high));
    const VI v1 = load_4x16(at<1>(low, high), at<5>(low, high), at<9>(low, high), at<13>(low, high));
    const VI v2 = load_4x16(at<2>(low, high), at<6>(low, high), at<10>(low, high), at<14>(low, high));
    const VI v3 = load_4x16(at<3>(low, high), at<7>(low, high), at<11>(low, high), at<15>(low, high));
    const VI a = zip_lo32(v0, v1), b = zip_hi32(v0, v1), c = zip_lo32(v2, v3), d = zip_hi32(v2, v3);
    out[0] = zip_lo64(a, c), out[1] = zip_hi64(a, c), out[2] = zip_lo64(b, d), out[3] = zip_hi64(b, d);
  }
  template <int kRow = 0>
  DI_INLINE void prefetch(const uint8_t* low, const uint8_t* high) const {
    prefetch_l2(at<kRow>(low, high));
    if constexpr (kRow < kPanel - 1) prefetch<kRow + 1>(low, high);
  }
};

// f(four vectors, index of the 16-byte step) over bytes [begin, begin + count) of the panel's rows. Lines `ahead` bytes
// further (the same columns of the next panel) are asked for meanwhile.
template <typename F>
DI_INLINE void for_steps(const PanelRows& panel, int64_t begin, int64_t count, int64_t ahead, F&& f) {
  int64_t i = 0;
  VI v[4];
  if (panel.is_whole()) {
    const Strides strides(panel.stride);
    const uint8_t *low = panel.base + begin, *high = low + 8 * panel.stride;
    for (; i + 16 <= count; i += 16, low += 16, high += 16) {
      if (i % 64 == 0) strides.prefetch(low + ahead, high + ahead);
      strides.transpose(low, high, v);
      f(v, i / 16);
    }
  }
  for (; i < count; i += 16) {
    alignas(64) uint8_t copy[kPanel][16] = {};
    const uint8_t* rows[kPanel];
    for (int r = 0; r < kPanel; ++r) {
      for (int64_t b = 0; b < count - i && b < 16; ++b) copy[r][b] = panel.row(r)[begin + i + b];
      rows[r] = copy[r];
    }
    transpose_16x16(rows, v);
    f(v, i / 16);
  }
}

// Decodes columns of `groups` groups from `group` on into out; consecutive vectors of this panel are `step` bytes
// apart.
DI_INLINE void decode_int8(const Weight& w, const PanelRows& panel, int64_t group, int64_t groups, int64_t ahead,
                           uint8_t* out, int64_t step) {
  const Fp4Codec codec;
  for_steps(panel, 16 * group, 16 * groups, ahead, [&](const VI* v, int64_t i) {
    uint8_t* to = out + i * 8 * step;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      storei(to + 2 * c * step, codec.even(v[c]));
      storei(to + (2 * c + 1) * step, codec.odd(v[c]));
    }
  });
  (void)w;
}
DI_INLINE void decode_int16(const PanelRows& panel, int64_t group, int64_t groups, int64_t ahead, uint8_t* out,
                            int64_t step) {
  const Fp8Codec codec(fp8_magnitudes());
  for_steps(panel, 32 * group, 32 * groups, ahead, [&](const VI* v, int64_t i) {
    uint8_t* to = out + i * 8 * step;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      VI even, odd;
      codec.decode(v[c], even, odd);
      storei(to + 2 * c * step, even);
      storei(to + (2 * c + 1) * step, odd);
    }
  });
}
// Floats, column by column; the last group is filled up with zeros.
DI_INLINE void decode_f32(const Weight& w, const PanelRows& panel, int64_t group, int64_t groups, int64_t ahead,
                          uint8_t* out, int64_t step) {
  const int64_t cols = w.cols - 32 * group < 32 * groups ? w.cols - 32 * group : 32 * groups;
  const int64_t begin = bytes_of_columns(w.kind, 32 * group), count = bytes_of_columns(w.kind, cols);
  auto put = [&](int64_t column, VF v) { storei(out + column * step, bits(v)); };
  int64_t done = 0;
  switch (w.kind) {
    case Weight::Kind::kF32:
      for_steps(panel, begin, count, ahead, [&](const VI* v, int64_t i) {
        for (int c = 0; c < 4; ++c) put(4 * i + c, as_float(v[c]));
        done = 4 * i + 4;
      });
      break;
    case Weight::Kind::kBF16:
      for_steps(panel, begin, count, ahead, [&](const VI* v, int64_t i) {
        for (int c = 0; c < 4; ++c) {
          put(8 * i + 2 * c, as_float(slli<16>(v[c])));
          put(8 * i + 2 * c + 1, as_float(andi(v[c], seti(static_cast<int32_t>(0xffff0000u)))));
        }
        done = 8 * i + 8;
      });
      break;
    case Weight::Kind::kFp4:
      for_steps(panel, begin, count, ahead, [&](const VI* v, int64_t i) {
        for (int c = 0; c < 4; ++c) {
          VI w4 = v[c];
          for (int n = 0; n < 8; ++n, w4 = srli<4>(w4)) put(32 * i + 8 * c + n, e2m1_value(andi(w4, seti(15))));
        }
        done = 32 * i + 32;
      });
      break;
    default:
      for_steps(panel, begin, count, ahead, [&](const VI* v, int64_t i) {
        for (int c = 0; c < 4; ++c) {
          put(16 * i + 4 * c, e4m3_value<0>(v[c]));
          put(16 * i + 4 * c + 1, e4m3_value<1>(v[c]));
          put(16 * i + 4 * c + 2, e4m3_value<2>(v[c]));
          put(16 * i + 4 * c + 3, e4m3_value<3>(v[c]));
        }
        done = 16 * i + 16;
      });
  }
  for (; done < 32 * groups; ++done) put(done, zero());
}

// Scales of the panel's rows for the groups, 16 floats each, `step` floats apart.
inline void decode_row_scales(const Weight& w, int64_t first_row, int64_t group, int64_t groups, float* out,
                              int64_t step) {
  const int64_t stride = w.cols / 32;
  for (int64_t g = 0; g < groups; g += 16) {
    alignas(64) uint8_t tail[kPanel][16];
    const uint8_t* rows[kPanel];
    const int64_t n = groups - g < 16 ? groups - g : 16;
    for (int r = 0; r < kPanel; ++r) {
      const int64_t at = first_row + r < w.rows ? first_row + r : w.rows - 1;
      rows[r] = w.scales + at * stride + group + g;
      if (n == 16) continue;
      for (int64_t b = 0; b < n; ++b) tail[r][b] = rows[r][b];
      for (int64_t b = n; b < 16; ++b) tail[r][b] = 0;
      rows[r] = tail[r];
    }
    VI v[4];
    transpose_16x16(rows, v);
    float* to = out + g * step;
    for (int c = 0; c < 4 && 4 * c < n; ++c) {
      store(to + 4 * c * step, ue8m0_value<0>(v[c]));
      if (4 * c + 1 < n) store(to + (4 * c + 1) * step, ue8m0_value<1>(v[c]));
      if (4 * c + 2 < n) store(to + (4 * c + 2) * step, ue8m0_value<2>(v[c]));
      if (4 * c + 3 < n) store(to + (4 * c + 3) * step, ue8m0_value<3>(v[c]));
    }
  }
}
DI_INLINE float ue8m0_scalar(uint8_t b) {
  return std::bit_cast<float>(b == 0 ? 0x00400000u : static_cast<uint32_t>(b) << 23);
}

// ---- tiles -------------------------------------------------------------------------------------------------------

// acc: fp32 sums, `sums_stride` floats from token to token, panel p at 16 p; `first`: start from 0.
template <int P, int N>
void tile_int8(const ChunkBuffer& chunk, int64_t group, int64_t groups, const Tokens& tokens, int t0, float* acc,
               int64_t sums_stride, bool first) {
  const int8_t* x[N];
  const float* scale[N];
  const int32_t* offset[N];
  for (int n = 0; n < N; ++n) {
    const int64_t row = tokens.row(t0 + n);
    x[n] = reinterpret_cast<const int8_t*>(tokens.input.data + row * tokens.input.row_bytes) + 32 * group;
    scale[n] = tokens.input.scales + row * tokens.input.groups + group;
    offset[n] = tokens.input.offsets + row * tokens.input.groups + group;
  }
  VF sum[P == 1 ? N : 1];
  if (P == 1) {
    for (int n = 0; n < N; ++n) sum[n] = first ? zero() : load(acc + n * sums_stride);
  }
  for (int64_t g = 0; g < groups; ++g) {
    VI dot[N][P];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dot[n][p] = seti(offset[n][g]);
    }
    const uint8_t* w = chunk.weights + g * 8 * P * 64;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      VI weight[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) weight[p] = loadi(w + (k * P + p) * 64);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const VI b = broadcast32(x[n] + 32 * g + 4 * k);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) dot[n][p] = dot_u8s8(dot[n][p], weight[p], b);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const VF weight_scale = load(chunk.scales + (g * P + p) * 16);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const VF factor = mul(weight_scale, set(scale[n][g]));
        if (P == 1) {
          sum[n] = fma(to_float(dot[n][p]), factor, sum[n]);
        } else {
          float* a = acc + n * sums_stride + 16 * p;
          store(a, fma(to_float(dot[n][p]), factor, first && g == 0 ? zero() : load(a)));
        }
      }
    }
  }
  if (P == 1) {
    for (int n = 0; n < N; ++n) store(acc + n * sums_stride, sum[n]);
  }
}

template <int P, int N>
void tile_int16(const ChunkBuffer& chunk, int64_t group, int64_t groups, const Tokens& tokens, int t0, float* acc,
                int64_t sums_stride, bool first) {
  const int16_t* x[N];
  const float* scale[N];
  for (int n = 0; n < N; ++n) {
    const int64_t row = tokens.row(t0 + n);
    x[n] = reinterpret_cast<const int16_t*>(tokens.input.data + row * tokens.input.row_bytes) + 32 * group;
    scale[n] = tokens.input.scales + row * tokens.input.groups + group;
  }
  VF sum[P == 1 ? N : 1];
  if (P == 1) {
    for (int n = 0; n < N; ++n) sum[n] = first ? zero() : load(acc + n * sums_stride);
  }
  for (int64_t g = 0; g < groups; ++g) {
    VI dot[N][P];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dot[n][p] = zeroi();
    }
    const uint8_t* w = chunk.weights + g * 16 * P * 64;
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      VI weight[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) weight[p] = loadi(w + (k * P + p) * 64);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const VI b = broadcast32(x[n] + 32 * g + 2 * k);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) dot[n][p] = dot_s16(dot[n][p], weight[p], b);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      VF factor = zero();
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        // Two panels are one block of 32 rows, with one scale.
        if (p % 2 == 0) factor = mul(set(chunk.scales[g * P + p]), set(scale[n][g]));
        if (P == 1) {
          sum[n] = fma(to_float(dot[n][p]), factor, sum[n]);
        } else {
          float* a = acc + n * sums_stride + 16 * p;
          store(a, fma(to_float(dot[n][p]), factor, first && g == 0 ? zero() : load(a)));
        }
      }
    }
  }
  if (P == 1) {
    for (int n = 0; n < N; ++n) store(acc + n * sums_stride, sum[n]);
  }
}

// Two panels at a time out of the P of the chunk: two chains for each of N x 2 sums fill the registers.
template <int P, int N>
void tile_f32(const ChunkBuffer& chunk, bool scaled, int64_t group, int64_t groups, const Tokens& tokens, int t0,
              float* acc, int64_t sums_stride, bool first) {
  constexpr int Q = P < 2 ? P : 2;
  const float* x[N];
  for (int n = 0; n < N; ++n) {
    x[n] = reinterpret_cast<const float*>(tokens.input.data + tokens.row(t0 + n) * tokens.input.row_bytes) + 32 * group;
  }
  for (int p0 = 0; p0 < P; p0 += Q) {
    for (int64_t g = 0; g < groups; ++g) {
      VF even[N][Q], odd[N][Q];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int p = 0; p < Q; ++p) even[n][p] = odd[n][p] = zero();
      }
      const uint8_t* w = chunk.weights + (g * 32 * P + p0) * 64;
#pragma GCC unroll 4
      for (int k = 0; k < 32; k += 2) {
        VF a[Q], b[Q];
#pragma GCC unroll 2
        for (int p = 0; p < Q; ++p) {
          a[p] = as_float(loadi(w + (k * P + p) * 64));
          b[p] = as_float(loadi(w + ((k + 1) * P + p) * 64));
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const VF xa = set(x[n][32 * g + k]), xb = set(x[n][32 * g + k + 1]);
#pragma GCC unroll 2
          for (int p = 0; p < Q; ++p) {
            even[n][p] = fma(a[p], xa, even[n][p]);
            odd[n][p] = fma(b[p], xb, odd[n][p]);
          }
        }
      }
#pragma GCC unroll 2
      for (int p = 0; p < Q; ++p) {
        const VF scale = scaled ? load(chunk.scales + (g * P + p0 + p) * 16) : set(1.f);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          float* to = acc + n * sums_stride + 16 * (p0 + p);
          store(to, fma(add(even[n][p], odd[n][p]), scale, first && g == 0 ? zero() : load(to)));
        }
      }
    }
  }
}

template <Path kPath, int P, int N>
DI_INLINE void tile(const ChunkBuffer& chunk, bool scaled, int64_t group, int64_t groups, const Tokens& tokens, int t0,
                    float* acc, int64_t sums_stride, bool first) {
  if constexpr (kPath == Path::kInt8) tile_int8<P, N>(chunk, group, groups, tokens, t0, acc, sums_stride, first);
  if constexpr (kPath == Path::kInt16) tile_int16<P, N>(chunk, group, groups, tokens, t0, acc, sums_stride, first);
  if constexpr (kPath == Path::kF32) tile_f32<P, N>(chunk, scaled, group, groups, tokens, t0, acc, sums_stride, first);
}

// ---- one or two rows of x ------------------------------------------------------------------------------------------

// Four weight rows meet N rows of x, 64 bytes of codes each at a time; lanes are columns. So memory is read in four
// streams of whole lines, with which prefetching keeps up (sixteen streams of pieces reach 70 % of that). The exact
// integer sums of each group are brought together and then added in the order of the tiles.
template <Path kPath, int N>
struct Quad {
  static constexpr bool kIsInt8 = kPath == Path::kInt8;
  static constexpr int kGroups = kIsInt8 ? 4 : 2;  // in 64 bytes of codes, which meet 128 bytes of x
  struct Block {
    const uint8_t* codes;
    int64_t stride;
    const uint8_t* scales;  // of the block's groups: int8 for each of the rows, int16 for all of them
    int64_t scale_stride;
    const std::byte* x[N];
    const float* x_scales[N];
    const int32_t* offsets[N];
  };
  Fp4Codec fp4;
  Fp8Codec fp8{fp8_magnitudes()};
  __m128 sum[N];  // a row a lane

  // Lane 4 q + r: the sum of quarter q of d[r].
  static DI_INLINE VI sum_quarters(const VI* d) {
    const VI a = addi(zip_lo32(d[0], d[1]), zip_hi32(d[0], d[1])), b = addi(zip_lo32(d[2], d[3]), zip_hi32(d[2], d[3]));
    return addi(zip_lo64(a, b), zip_hi64(a, b));
  }
  DI_INLINE void decode(const uint8_t* codes, VI& even, VI& odd) const {
    const VI v = loadi(codes);
    if constexpr (kIsInt8) {
      even = fp4.even(v), odd = fp4.odd(v);
    } else {
      fp8.decode(v, even, odd);
    }
  }
  static DI_INLINE VI dot(VI sum, VI weight, VI x) {
    if constexpr (kIsInt8) {
      return dot_u8s8(sum, weight, x);
    } else {
      return dot_s16(sum, weight, x);
    }
  }
  // sum += the first kCount groups of the block, in ascending order.
  template <int kCount>
  DI_INLINE void add(const Block& b) {
    VI even[4], odd[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) decode(b.codes + r * b.stride, even[r], odd[r]);
    const VF row_scales = kIsInt8 ? ue8m0_value<0>(load_bytes_4x4(b.scales, b.scale_stride)) : zero();
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      VI x_even, x_odd, d[4];
      split_lanes(b.x[n], x_even, x_odd);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) d[r] = dot(dot(zeroi(), even[r], x_even), odd[r], x_odd);
      if constexpr (kIsInt8) {
        const VF group = to_float(addi(sum_quarters(d), spread4(b.offsets[n])));
        const VF factor = mul(row_scales, spread4(b.x_scales[n]));
        sum[n] = _mm_fmadd_ps(quarter<0>(group), quarter<0>(factor), sum[n]);
        if constexpr (kCount > 1) sum[n] = _mm_fmadd_ps(quarter<1>(group), quarter<1>(factor), sum[n]);
        if constexpr (kCount > 2) sum[n] = _mm_fmadd_ps(quarter<2>(group), quarter<2>(factor), sum[n]);
        if constexpr (kCount > 3) sum[n] = _mm_fmadd_ps(quarter<3>(group), quarter<3>(factor), sum[n]);
      } else {
        const VF group = to_float(add_neighbour_quarter(sum_quarters(d)));
        auto factor = [&](int i) { return _mm_set1_ps(ue8m0_scalar(b.scales[i]) * b.x_scales[n][i]); };
        sum[n] = _mm_fmadd_ps(quarter<0>(group), factor(0), sum[n]);
        if constexpr (kCount > 1) sum[n] = _mm_fmadd_ps(quarter<2>(group), factor(1), sum[n]);
      }
    }
  }
  // The last groups of a row, fewer than a block: from copies, so that nothing behind them is read.
  inline void add_rest(const Block& b, int count) {
    alignas(64) uint8_t codes[4][64] = {}, scales[4][4] = {};
    alignas(64) std::byte x[N][128] = {};
    float x_scales[N][4] = {};
    int32_t offsets[N][4] = {};
    Block rest{codes[0], 64, scales[0], 4, {}, {}, {}};
    const size_t groups = static_cast<size_t>(count);
    for (int r = 0; r < 4; ++r) {
      __builtin_memcpy(codes[r], b.codes + r * b.stride, groups * (64 / kGroups));
      __builtin_memcpy(scales[r], b.scales + r * b.scale_stride, groups);
    }
    for (int n = 0; n < N; ++n) {
      __builtin_memcpy(x[n], b.x[n], groups * (128 / kGroups));
      __builtin_memcpy(x_scales[n], b.x_scales[n], groups * 4);
      if (kIsInt8) __builtin_memcpy(offsets[n], b.offsets[n], groups * 4);
      rest.x[n] = x[n], rest.x_scales[n] = x_scales[n], rest.offsets[n] = offsets[n];
    }
    if (count == 1) add<1>(rest);
    if (count == 2) add<2>(rest);
    if (count == 3) add<3>(rest);
  }
};

// `num_rows` (a multiple of 4) whole rows; `next` are the codes of the row that is read after them.
template <Path kPath, int N>
void product_stream(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc,
                    int64_t sums_stride, const uint8_t* next) {
  using Q = Quad<kPath, N>;
  constexpr int64_t kAheadBytes = 8192;  // 64 lines of about 100 ns each are more than both cores' share of the bus
  Q quad;
  const int64_t groups = w.cols / 32, stride = bytes_of_columns(w.kind, w.cols);
  const int64_t scale_stride = kPath == Path::kInt8 ? groups : 0;
  const int64_t ahead = (kAheadBytes / stride + 4) / 4 * 4;
  const uint8_t* base = static_cast<const uint8_t*>(w.codes) + first_row * stride;
  for (int64_t r = 0; r < num_rows; r += 4) {
    const int64_t row = first_row + r;
    typename Q::Block b{base + r * stride,
                        stride,
                        w.scales + (kPath == Path::kInt8 ? row : row / 32) * groups,
                        scale_stride,
                        {},
                        {},
                        {}};
    for (int n = 0; n < N; ++n) {
      const int64_t t = tokens.row(n);
      b.x[n] = tokens.input.data + t * tokens.input.row_bytes;
      b.x_scales[n] = tokens.input.scales + t * tokens.input.groups;
      if (kPath == Path::kInt8) b.offsets[n] = tokens.input.offsets + t * tokens.input.groups;
      quad.sum[n] = _mm_setzero_ps();
    }
    const uint8_t* later = r + ahead < num_rows ? b.codes + ahead * stride : next + (r + ahead - num_rows) * stride;
    int64_t g = 0;
    for (; g + Q::kGroups <= groups; g += Q::kGroups) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) prefetch_l1(later + i * stride);
      quad.template add<Q::kGroups>(b);
      b.codes += 64, b.scales += Q::kGroups, later += 64;
      for (int n = 0; n < N; ++n) {
        b.x[n] += 128, b.x_scales[n] += Q::kGroups;
        if (kPath == Path::kInt8) b.offsets[n] += Q::kGroups;
      }
    }
    if (g < groups) quad.add_rest(b, static_cast<int>(groups - g));
    for (int n = 0; n < N; ++n) _mm_storeu_ps(acc + n * sums_stride + r, quad.sum[n]);
  }
}

// ---- few rows ------------------------------------------------------------------------------------------------------

// One whole panel and N rows of x (three to eight), codes going from registers into the sums: the same additions as a
// tile's, without the way through the buffer. Only the first `count` of the N rows are stored; the others repeat the
// last.
template <Path kPath, int N>
void product_few(const Weight& w, int64_t first_row, const Tokens& tokens, float* acc, int64_t sums_stride) {
  constexpr int64_t kScaleGroups = 128;
  constexpr int kBytes = kPath == Path::kInt8 ? 32 : 64;
  alignas(64) float scales[kScaleGroups * 16];
  const int64_t groups = w.cols / 32;
  const PanelRows panel(w, first_row);
  const Strides strides(panel.stride);
  const Fp4Codec fp4;
  const Fp8Codec fp8(fp8_magnitudes());
  const uint8_t *low = panel.base, *high = low + 8 * panel.stride;
  const int64_t ahead = kPanel * panel.stride;
  const uint8_t* block_scales = kPath == Path::kInt16 ? w.scales + first_row / 32 * groups : nullptr;
  const std::byte* x[N];
  const float* scale[N];
  const int32_t* offset[N];
  VF sum[N];
  for (int n = 0; n < N; ++n) {
    const int64_t row = tokens.row(n < tokens.count ? n : tokens.count - 1);
    x[n] = tokens.input.data + row * tokens.input.row_bytes;
    scale[n] = tokens.input.scales + row * tokens.input.groups;
    offset[n] = kPath == Path::kInt8 ? tokens.input.offsets + row * tokens.input.groups : nullptr;
    sum[n] = zero();
  }
  for (int64_t g = 0; g < groups; ++g) {
    if (kPath == Path::kInt8 && g % kScaleGroups == 0) {
      decode_row_scales(w, first_row, g, groups - g < kScaleGroups ? groups - g : kScaleGroups, scales, 16);
    }
    VI dot[N];
    if constexpr (kPath == Path::kInt8) {
      if (g % 4 == 0) strides.prefetch(low + ahead, high + ahead);
      VI v[4];
      strides.transpose(low, high, v);
      low += 16, high += 16;
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) dot[n] = seti(offset[n][g]);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const VI even = fp4.even(v[c]), odd = fp4.odd(v[c]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          dot[n] = dot_u8s8(dot[n], even, broadcast32(x[n] + kBytes * g + 8 * c));
          dot[n] = dot_u8s8(dot[n], odd, broadcast32(x[n] + kBytes * g + 8 * c + 4));
        }
      }
    } else {
      if (g % 2 == 0) strides.prefetch(low + ahead, high + ahead);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) dot[n] = zeroi();
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        VI v[4];
        strides.transpose(low, high, v);
        low += 16, high += 16;
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          VI even, odd;
          fp8.decode(v[c], even, odd);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) {
            dot[n] = dot_s16(dot[n], even, broadcast32(x[n] + kBytes * g + 32 * half + 8 * c));
            dot[n] = dot_s16(dot[n], odd, broadcast32(x[n] + kBytes * g + 32 * half + 8 * c + 4));
          }
        }
      }
    }
    const VF row_scales =
        kPath == Path::kInt8 ? load(scales + g % kScaleGroups * 16) : set(ue8m0_scalar(block_scales[g]));
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[n] = fma(to_float(dot[n]), mul(row_scales, set(scale[n][g])), sum[n]);
  }
  for (int n = 0; n < N && n < tokens.count; ++n) store(acc + n * sums_stride, sum[n]);
}

template <Path kPath>
void product_few_rows(const Weight& w, int64_t first_row, const Tokens& tokens, float* acc, int64_t sums_stride) {
  if (tokens.count <= 4) return product_few<kPath, 4>(w, first_row, tokens, acc, sums_stride);
  if (tokens.count <= 6) return product_few<kPath, 6>(w, first_row, tokens, acc, sums_stride);
  return product_few<kPath, 8>(w, first_row, tokens, acc, sums_stride);
}

// ---- a block -----------------------------------------------------------------------------------------------------

template <Path kPath, int P>
void product_panels(const Weight& w, int64_t first_row, const Tokens& tokens, float* acc, int64_t sums_stride,
                    ChunkBuffer& chunk) {
  constexpr int kVectors = kPath == Path::kInt8 ? 8 : kPath == Path::kInt16 ? 16 : 32;  // of a panel and group
  constexpr int64_t kChunkGroups = kChunkBytes / (kVectors * P * 64);
  const int64_t groups = (w.cols + 31) / 32, ahead = kPanel * P * bytes_of_columns(w.kind, w.cols);
  const bool scaled = w.kind == Weight::Kind::kFp4 || w.kind == Weight::Kind::kFp8 || w.kind == Weight::Kind::kFp8Row;
  for (int64_t group = 0; group < groups; group += kChunkGroups) {
    const int64_t n = groups - group < kChunkGroups ? groups - group : kChunkGroups;
    for (int p = 0; p < P; ++p) {
      const int64_t row = first_row + kPanel * p < w.rows ? first_row + kPanel * p : w.rows - 1;
      const PanelRows panel(w, row);
      uint8_t* out = chunk.weights + 64 * p;
      if constexpr (kPath == Path::kInt8) decode_int8(w, panel, group, n, ahead, out, 64 * P);
      if constexpr (kPath == Path::kInt16) decode_int16(panel, group, n, ahead, out, 64 * P);
      if constexpr (kPath == Path::kF32) decode_f32(w, panel, group, n, ahead, out, 64 * P);
      if (w.kind == Weight::Kind::kFp4 || w.kind == Weight::Kind::kFp8Row) {
        decode_row_scales(w, row, group, n, chunk.scales + 16 * p, 16 * P);
      } else if (w.kind == Weight::Kind::kFp8) {
        const uint8_t* scales = w.scales + row / 32 * (w.cols / 32) + group;
        for (int64_t g = 0; g < n; ++g) {
          const float s = ue8m0_scalar(scales[g]);
          if constexpr (kPath == Path::kInt16) {
            chunk.scales[g * P + p] = s;
          } else {
            store(chunk.scales + (g * P + p) * 16, set(s));
          }
        }
      }
    }
    int t = 0;
    float* a = acc;
    const bool first = group == 0;
    auto tokens_at_once = [&]<int N>() {
      for (; t + N <= tokens.count; t += N, a += N * sums_stride)
        tile<kPath, P, N>(chunk, scaled, group, n, tokens, t, a, sums_stride, first);
    };
    tokens_at_once.template operator()<kTileTokens>();
    if constexpr (kTileTokens > 4) tokens_at_once.template operator()<4>();
    if constexpr (kTileTokens > 2) tokens_at_once.template operator()<2>();
    tokens_at_once.template operator()<1>();
  }
}

template <Path kPath>
void product_block(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc,
                   int64_t sums_stride, ChunkBuffer& chunk, const uint8_t* next) {
  if (tokens.count > kFewTokens && num_rows == kBlockRows) {
    product_panels<kPath, 4>(w, first_row, tokens, acc, sums_stride, chunk);
    return;
  }
  if constexpr (kPath != Path::kF32) {
    if (tokens.count <= 2) {
      const int64_t whole = num_rows / kPanel * kPanel;
      if (next == nullptr) next = row_codes(w, first_row + whole);
      if (tokens.count == 1) product_stream<kPath, 1>(w, first_row, whole, tokens, acc, sums_stride, next);
      if (tokens.count == 2) product_stream<kPath, 2>(w, first_row, whole, tokens, acc, sums_stride, next);
      num_rows -= whole, first_row += whole, acc += whole;
    } else if (tokens.count <= kFewTokens) {
      for (; num_rows >= kPanel; num_rows -= kPanel, first_row += kPanel, acc += kPanel) {
        product_few_rows<kPath>(w, first_row, tokens, acc, sums_stride);
      }
    }
  }
  for (int64_t r = 0; r < num_rows; r += kPanel)
    product_panels<kPath, 1>(w, first_row + r, tokens, acc + r, sums_stride, chunk);
}

}  // namespace

namespace DI_ISA {

void product(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc,
             int64_t sums_stride, const uint8_t* next) {
  ChunkBuffer chunk;
  switch (tokens.input.path) {
    case Path::kInt8:
      return product_block<Path::kInt8>(w, first_row, num_rows, tokens, acc, sums_stride, chunk, next);
    case Path::kInt16:
      return product_block<Path::kInt16>(w, first_row, num_rows, tokens, acc, sums_stride, chunk, next);
    case Path::kF32:
      return product_block<Path::kF32>(w, first_row, num_rows, tokens, acc, sums_stride, chunk, next);
  }
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
