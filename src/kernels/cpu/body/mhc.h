// One mHC site (model.md 3.1, 3.2), in one pass over the streams.
//
//   A batch row's channels are cut into pieces of kPiece. A unit (up to kUnitRows rows, one piece) unfolds the previous
//   output into its channels of all streams, folds them, and adds up its part of the mixes' products and of both mean
//   squares. When all units are done the partial sums are added piece by piece in ascending order, and the row is
//   finished: mixes, Sinkhorn (a row a lane), norm. Inside a piece a sum runs over streams and channels in ascending
//   order in 16 lanes, then the lane tree.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int64_t kPiece = 512;
constexpr int kMaxStreams = 8, kMaxMixes = kMaxStreams * (kMaxStreams + 2);
constexpr int kUnitRows = 8;  // the matrix of the mixes is read once for all of them

// Partial sums of one row and piece: mixes, then the mean squares of the streams and of the folded row.
DI_INLINE int64_t sums_per_piece(int m) {
  return m * (m + 2) + 2;
}

// Mixes first_mix .. first_mix + R - 1 of N rows: sums[mix][row] += one stream's channels [0, count) of h and fn.
template <int R, int N>
DI_INLINE void mix_products(const float* h, int64_t h_stride, const float* fn, int64_t fn_stride, int64_t count,
                            int first_mix, bool first, VF* sums) {
  VF acc[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[i][n] = first ? zero() : sums[(first_mix + i) * N + n];
  }
  fn += first_mix * fn_stride;
  for (int64_t c = 0; c < count; c += 16) {
    VF v[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) v[n] = load(h + n * h_stride + c);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const VF w = load(fn + i * fn_stride + c);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[i][n] = fma(w, v[n], acc[i][n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[(first_mix + i) * N + n] = acc[i][n];
  }
}

// Products of all mixes with N rows, I mixes at a time. Stream by stream, so that the rows' part of a stream, which all
// mixes read, stays in the first-level cache.
template <int I, int N>
inline void all_mixes(const MhcParams& p, int64_t t0, int64_t begin, int64_t end, int64_t width, float* out,
                      int64_t row_stride) {
  const int mixes = p.m * (p.m + 2);
  const int64_t d = width / p.m;
  VF sums[kMaxMixes * N];
  for (int j = 0; j < p.m; ++j) {
    const float *h = p.streams.f32(t0) + j * d + begin, *fn = p.fn + j * d + begin;
    int i = 0;
    for (; i + I <= mixes; i += I) mix_products<I, N>(h, p.streams.stride, fn, width, end - begin, i, j == 0, sums);
    for (; i < mixes; ++i) mix_products<1, N>(h, p.streams.stride, fn, width, end - begin, i, j == 0, sums);
  }
  for (int i = 0; i < mixes; ++i) {
    for (int n = 0; n < N; ++n) out[n * row_stride + i] = reduce(sums[i * N + n]);
  }
}
// Tiles of mixes x rows: as many sums as registers allow.
DI_INLINE void mixes_of_rows(const MhcParams& p, int64_t t0, int64_t count, int64_t begin, int64_t end, int64_t width,
                             float* sums, int64_t row_stride) {
  int64_t n = 0;
#if defined(__AVX512VNNI__)
  for (; n + 8 <= count; n += 8) all_mixes<3, 8>(p, t0 + n, begin, end, width, sums + n * row_stride, row_stride);
  for (; n + 4 <= count; n += 4) all_mixes<6, 4>(p, t0 + n, begin, end, width, sums + n * row_stride, row_stride);
  for (; n < count; ++n) all_mixes<8, 1>(p, t0 + n, begin, end, width, sums + n * row_stride, row_stride);
#else
  for (; n + 2 <= count; n += 2) all_mixes<3, 2>(p, t0 + n, begin, end, width, sums + n * row_stride, row_stride);
  for (; n < count; ++n) all_mixes<4, 1>(p, t0 + n, begin, end, width, sums + n * row_stride, row_stride);
#endif
}

// Unfold and fold of one row's piece; returns nothing, writes streams, x or folded, and the two mean squares' parts.
// M streams, or any number if 0.
template <int M>
inline void pass_channels(const MhcParams& p, int64_t t, int64_t begin, int64_t end, float* sums) {
  const int m = M > 0 ? M : p.m;
  const int64_t d = p.streams.cols / m;
  float* h = p.streams.f32(t);
  const bool unfold = !p.y.empty(), fold = p.gain != nullptr || !p.folded.empty();
  const float* y = unfold ? p.y.f32(t) : nullptr;
  const float* post = unfold ? p.post_in.f32(t) : nullptr;
  const float* comb = unfold ? p.comb_in.f32(t) : nullptr;
  const float* pre = fold ? p.pre_in.f32(t) : nullptr;
  float* out = p.gain != nullptr ? p.x.f32(t) : fold ? p.folded.f32(t) : nullptr;
  VF squares = zero(), folded_squares = zero();
  for (int64_t c = begin; c < end; c += 16) {
    VF s[kMaxStreams];
#pragma GCC unroll 4
    for (int j = 0; j < m; ++j) s[j] = load(h + j * d + c);
    if (unfold) {
      const VF v = load(y + c);
      VF next[kMaxStreams];
#pragma GCC unroll 4
      for (int j = 0; j < m; ++j) {
        VF sum = mul(set(comb[j]), s[0]);
#pragma GCC unroll 4
        for (int i = 1; i < m; ++i) sum = fma(set(comb[i * m + j]), s[i], sum);
        next[j] = add(mul(set(post[j]), v), sum);
      }
#pragma GCC unroll 4
      for (int j = 0; j < m; ++j) {
        s[j] = next[j];
        store(h + j * d + c, next[j]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < m; ++j) squares = fma(s[j], s[j], squares);
    if (fold) {
      VF sum = mul(set(pre[0]), s[0]);
#pragma GCC unroll 4
      for (int j = 1; j < m; ++j) sum = add(sum, mul(set(pre[j]), s[j]));
      store(out + c, sum);
      if (p.gain != nullptr && !p.folded.empty()) store(p.folded.f32(t) + c, sum);
      folded_squares = fma(sum, sum, folded_squares);
    }
  }
  sums[m * (m + 2)] = reduce(squares);
  sums[m * (m + 2) + 1] = reduce(folded_squares);
}

// c [m, m], a row of the batch in each lane: softmax of the rows, then column and row sums in turn.
inline void sinkhorn(VF* c, int m, int iters, float eps) {
  for (int i = 0; i < m; ++i) {
    VF* row = c + i * m;
    VF top = row[0], sum = zero();
    for (int j = 1; j < m; ++j) top = vmax(top, row[j]);
    for (int j = 0; j < m; ++j) {
      row[j] = vexp(sub(row[j], top));
      sum = add(sum, row[j]);
    }
    const VF inverse = div(set(1.f), sum);
    for (int j = 0; j < m; ++j) row[j] = fma(row[j], inverse, set(eps));
  }
  for (int k = 0; k < 2 * iters - 1; ++k) {
    const int along = k % 2 == 0 ? m : 1, across = k % 2 == 0 ? 1 : m;  // columns first
    for (int a = 0; a < m; ++a) {
      VF* line = c + a * across;
      VF sum = line[0];
      for (int b = 1; b < m; ++b) sum = add(sum, line[b * along]);
      const VF inverse = div(set(1.f), add(sum, set(eps)));
      for (int b = 0; b < m; ++b) line[b * along] = mul(line[b * along], inverse);
    }
  }
}

// a[0 .. mixes + 2): the row's sums over all pieces.
DI_INLINE void add_pieces(const float* partial, int64_t pieces, int64_t count, float* a) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = partial[i];
    for (int64_t k = 1; k < pieces; ++k) sum += partial[k * count + i];
    a[i] = sum;
  }
}

// Rows t0 .. t0 + n - 1, at most sixteen.
inline void finish_rows(const MhcParams& p, int64_t t0, int n, const float* partial, int64_t pieces) {
  const int m = p.m, mixes = m * (m + 2);
  const int64_t width = p.streams.cols, d = width / m, stride = sums_per_piece(m);
  VF comb[kMaxStreams * kMaxStreams];
  float* lanes = reinterpret_cast<float*>(comb);  // [m m][16]
  for (int i = 0; i < m * m; ++i) comb[i] = zero();
  for (int r = 0; r < n; ++r) {
    alignas(64) float a[kMaxMixes + 2 + 16];
    add_pieces(partial + r * pieces * stride, pieces, stride, a);
    const float squares = a[mixes], folded_squares = a[mixes + 1];
    const int64_t t = t0 + r;
    if (p.gain != nullptr) {
      scale_by_gain(p.x.f32(t), p.gain, inverse_rms(folded_squares, d, p.rms_eps), d, p.x.f32(t));
    }
    if (p.fn == nullptr) continue;
    const float inverse = inverse_rms(squares, width, p.rms_eps);
    for (int i = 0; i < mixes; ++i) a[i] = a[i] * inverse * p.scale[i < m ? 0 : i < 2 * m ? 1 : 2] + p.base[i];
    alignas(64) float s[16];
    store(s, vsigmoid(load(a)));  // 2 m <= 16
    for (int j = 0; j < m; ++j) p.pre_out.f32(t)[j] = s[j] + p.hc_eps;
    for (int j = 0; j < m; ++j) p.post_out.f32(t)[j] = 2 * s[m + j];
    for (int i = 0; i < m * m; ++i) lanes[16 * i + r] = a[2 * m + i];
  }
  if (p.fn == nullptr) return;
  sinkhorn(comb, m, p.sinkhorn_iters, p.hc_eps);
  for (int r = 0; r < n; ++r) {
    for (int i = 0; i < m * m; ++i) p.comb_out.f32(t0 + r)[i] = lanes[16 * i + r];
  }
}

}  // namespace

namespace DI_ISA {

void mhc(const Context& ctx, const MhcParams& p) {
  const int64_t num_rows = p.streams.rows, width = p.streams.cols, d = width / p.m;
  const int64_t pieces = (d + kPiece - 1) / kPiece, stride = sums_per_piece(p.m), row_stride = pieces * stride;
  Scratch scratch(ctx);
  const int64_t most_rows =
      scratch.left() / (row_stride * 4) / kUnitRows * kUnitRows;  // whose sums fit; a result depends on its row only
  const int64_t rows_at_once = num_rows < most_rows || most_rows == 0 ? num_rows : most_rows;
  float* partial = static_cast<float*>(scratch.take(rows_at_once * row_stride * 4));
  for (int64_t base = 0; base < num_rows; base += rows_at_once) {
    const int64_t rows = num_rows - base < rows_at_once ? num_rows - base : rows_at_once;
    const int64_t tiles = (rows + kUnitRows - 1) / kUnitRows;
    auto unit = [&](int64_t i) {
      const int64_t piece = i % pieces, first = i / pieces * kUnitRows;
      const int64_t count = rows - first < kUnitRows ? rows - first : kUnitRows;
      const int64_t begin = piece * kPiece, end = begin + kPiece < d ? begin + kPiece : d;
      float* sums = partial + first * row_stride + piece * stride;
      for (int64_t n = 0; n < count; ++n) {
        if (p.m == 4) {  // the released number, unrolled
          pass_channels<4>(p, base + first + n, begin, end, sums + n * row_stride);
        } else {
          pass_channels<0>(p, base + first + n, begin, end, sums + n * row_stride);
        }
      }
      if (p.fn != nullptr) mixes_of_rows(p, base + first, count, begin, end, width, sums, row_stride);
    };
    if (rows * width * (p.fn != nullptr ? 8 : 1) <= kSerialElements) {
      for (int64_t i = 0; i < tiles * pieces; ++i) unit(i);
    } else {
      ctx.pool.each(tiles * pieces, unit);
    }
    for_rows(ctx, rows, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t += 16) {
        finish_rows(p, base + t, static_cast<int>(end - t < 16 ? end - t : 16), partial + t * row_stride, pieces);
      }
    });
  }
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
