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
constexpr int kFewTokens = 8;  // up to here a chunk is one panel and long, above four panels and short

struct ChunkBuffer {
  alignas(64) uint8_t weights[kChunkBytes];
  alignas(64) float scales[kChunkBytes / 16];  // [group][panel][16], or [group][panel] for kInt16
};

DI_INLINE int64_t bytes_of_columns(Weight::Kind kind, int64_t n) {
  switch (kind) {
    case Weight::Kind::kF32:
      return 4 * n;
    case Weight::Kind::kBF16:
      return 2 * n;
    case Weight::Kind::kFp4:
      return n / 2;
    default:
      return n;
  }
}

// ---- decoding ----------------------------------------------------------------------------------------------------

// Rows of a panel from byte `offset` on; rows beyond the end repeat the last one.
struct PanelRows {
  const uint8_t* row[kPanel];
  DI_INLINE PanelRows(const Weight& w, int64_t first) {
    const int64_t stride = bytes_of_columns(w.kind, w.cols);
    for (int r = 0; r < kPanel; ++r) {
      const int64_t at = first + r < w.rows ? first + r : w.rows - 1;
      row[r] = static_cast<const uint8_t*>(w.codes) + at * stride;
    }
  }
};

// f(four vectors, index of the 16-byte step) over bytes [begin, begin + count) of the panel's rows.
template <typename F>
DI_INLINE void for_steps(const PanelRows& panel, int64_t begin, int64_t count, int64_t ahead, F&& f) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const uint8_t* rows[kPanel];
    for (int r = 0; r < kPanel; ++r) rows[r] = panel.row[r] + begin + i;
    if (i % 64 == 0) {
#pragma GCC unroll 16
      for (int r = 0; r < kPanel; ++r) prefetch_l2(rows[r] + ahead);
    }
    VI v[4];
    transpose_16x16(rows, v);
    f(v, i / 16);
  }
  if (i < count) {
    alignas(64) uint8_t tail[kPanel][16] = {};
    const uint8_t* rows[kPanel];
    for (int r = 0; r < kPanel; ++r) {
      for (int64_t b = 0; b < count - i; ++b) tail[r][b] = panel.row[r][begin + i + b];
      rows[r] = tail[r];
    }
    VI v[4];
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

// acc[token][64]: fp32 sums of the block, panel p at 16 p; `first`: start from 0.
template <int P, int N>
void tile_int8(const ChunkBuffer& chunk, int64_t group, int64_t groups, const Tokens& tokens, int t0, float* acc,
               bool first) {
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
    for (int n = 0; n < N; ++n) sum[n] = first ? zero() : load(acc + n * kBlockRows);
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
          float* a = acc + n * kBlockRows + 16 * p;
          store(a, fma(to_float(dot[n][p]), factor, first && g == 0 ? zero() : load(a)));
        }
      }
    }
  }
  if (P == 1) {
    for (int n = 0; n < N; ++n) store(acc + n * kBlockRows, sum[n]);
  }
}

template <int P, int N>
void tile_int16(const ChunkBuffer& chunk, int64_t group, int64_t groups, const Tokens& tokens, int t0, float* acc,
                bool first) {
  const int16_t* x[N];
  const float* scale[N];
  for (int n = 0; n < N; ++n) {
    const int64_t row = tokens.row(t0 + n);
    x[n] = reinterpret_cast<const int16_t*>(tokens.input.data + row * tokens.input.row_bytes) + 32 * group;
    scale[n] = tokens.input.scales + row * tokens.input.groups + group;
  }
  VF sum[P == 1 ? N : 1];
  if (P == 1) {
    for (int n = 0; n < N; ++n) sum[n] = first ? zero() : load(acc + n * kBlockRows);
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
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const VF factor = set(chunk.scales[g * P + p] * scale[n][g]);
        if (P == 1) {
          sum[n] = fma(to_float(dot[n][p]), factor, sum[n]);
        } else {
          float* a = acc + n * kBlockRows + 16 * p;
          store(a, fma(to_float(dot[n][p]), factor, first && g == 0 ? zero() : load(a)));
        }
      }
    }
  }
  if (P == 1) {
    for (int n = 0; n < N; ++n) store(acc + n * kBlockRows, sum[n]);
  }
}

// Two panels at a time out of the P of the chunk: two chains for each of N x 2 sums fill the registers.
template <int P, int N>
void tile_f32(const ChunkBuffer& chunk, bool scaled, int64_t group, int64_t groups, const Tokens& tokens, int t0,
              float* acc, bool first) {
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
          float* to = acc + n * kBlockRows + 16 * (p0 + p);
          store(to, fma(add(even[n][p], odd[n][p]), scale, first && g == 0 ? zero() : load(to)));
        }
      }
    }
  }
}

template <Path kPath, int P, int N>
DI_INLINE void tile(const ChunkBuffer& chunk, bool scaled, int64_t group, int64_t groups, const Tokens& tokens, int t0,
                    float* acc, bool first) {
  if constexpr (kPath == Path::kInt8) tile_int8<P, N>(chunk, group, groups, tokens, t0, acc, first);
  if constexpr (kPath == Path::kInt16) tile_int16<P, N>(chunk, group, groups, tokens, t0, acc, first);
  if constexpr (kPath == Path::kF32) tile_f32<P, N>(chunk, scaled, group, groups, tokens, t0, acc, first);
}

// ---- a block -----------------------------------------------------------------------------------------------------

template <Path kPath, int P>
void product_panels(const Weight& w, int64_t first_row, const Tokens& tokens, float* acc, ChunkBuffer& chunk) {
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
      for (; t + N <= tokens.count; t += N, a += N * kBlockRows)
        tile<kPath, P, N>(chunk, scaled, group, n, tokens, t, a, first);
    };
    tokens_at_once.template operator()<kTileTokens>();
    if constexpr (kTileTokens > 4) tokens_at_once.template operator()<4>();
    if constexpr (kTileTokens > 2) tokens_at_once.template operator()<2>();
    tokens_at_once.template operator()<1>();
  }
}

template <Path kPath>
void product_block(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc,
                   ChunkBuffer& chunk) {
  if (tokens.count > kFewTokens && num_rows == kBlockRows) {
    product_panels<kPath, 4>(w, first_row, tokens, acc, chunk);
    return;
  }
  for (int64_t r = 0; r < num_rows; r += kPanel) product_panels<kPath, 1>(w, first_row + r, tokens, acc + r, chunk);
}

}  // namespace

namespace DI_ISA {

void product(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc) {
  ChunkBuffer chunk;
  switch (tokens.input.path) {
    case Path::kInt8:
      return product_block<Path::kInt8>(w, first_row, num_rows, tokens, acc, chunk);
    case Path::kInt16:
      return product_block<Path::kInt16>(w, first_row, num_rows, tokens, acc, chunk);
    case Path::kF32:
      return product_block<Path::kF32>(w, first_row, num_rows, tokens, acc, chunk);
  }
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
