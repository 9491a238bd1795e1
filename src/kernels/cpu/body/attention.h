// Attention of each row over its window keys and its chosen entries, all heads sharing one key that is also the value.
//
//   A unit is one row and a set of heads. Keys are taken in the order window ascending, then chosen ascending, in
//   chunks of 16 counted from the row's first key: decoded once to fp32, then used by all heads of the unit. Lanes are
//   heads for the scores (queries transposed to [D][heads]) and channels for the sum.
//
// Order of additions, depending on nothing but the row's own keys: a score is one fma chain over channels in ascending
// order; denominator and output run over keys in ascending order, under a running maximum: a chunk that raises it
// rescales both.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int kKeys = 16;
constexpr int64_t kMaxScales = 256;  // entry scales of a record: head_dim <= 4096

DI_INLINE void decode_window_key(const uint8_t* record, int64_t dim, float* out) {
  for (int64_t c = 0; c < dim; c += 32) {
    const VF scale = ue8m0_value<0>(seti(record[dim + c / 32]));
    store(out + c, mul(e4m3_value<0>(load_u8(record + c)), scale));
    store(out + c + 16, mul(e4m3_value<0>(load_u8(record + c + 16)), scale));
  }
}
DI_INLINE void decode_entry(const uint8_t* record, int64_t dim, float* out) {
  alignas(64) float scales[kMaxScales + 16];
  const uint8_t* codes = record + dim / 2;
  const int64_t n = dim / 16;
  int64_t g = 0;
  for (; g + 16 <= n; g += 16) store(scales + g, e4m3_value<0>(load_u8(codes + g)));
  if (g < n) {
    uint8_t tail[16] = {};
    __builtin_memcpy(tail, codes + g, static_cast<size_t>(n - g));
    store(scales + g, e4m3_value<0>(load_u8(tail)));
  }
  for (g = 0; g < n; ++g) store(out + 16 * g, mul(e2m1_value(load_nibbles(record + 8 * g)), set(scales[g])));
}

// The keys of one row by number.
struct Keys {
  const AttentionParams* p;
  const Run* run;
  const int32_t* chosen;
  int64_t first_pos, num_window, count;

  DI_INLINE Keys(const AttentionParams& params, int64_t t) : p(&params) {
    run = &params.batch->runs[static_cast<size_t>(params.batch->run_of_row[t])];
    const int64_t pos = params.batch->positions[t], window = params.window.window;
    const int64_t end = params.block_mask ? run->first_pos + run->num_rows : pos + 1;
    int64_t begin = params.block_mask ? run->first_pos - window : pos - window + 1;
    if (begin < run->window_floor) begin = run->window_floor;
    if (begin < 0) begin = 0;
    first_pos = begin;
    num_window = end > begin ? end - begin : 0;
    count = num_window;
    chosen = params.chosen.empty() ? nullptr : params.chosen.row<int32_t>(t);
    if (chosen != nullptr) {
      int64_t n = 0;
      while (n < params.chosen.cols && chosen[n] >= 0) ++n;  // ascending, then -1
      count += n;
    }
  }
  DI_INLINE const uint8_t* record(int64_t i) const {
    if (i < num_window) {
      const int64_t pos = first_pos + i, bytes = p->head_dim + p->head_dim / 32;
      return reinterpret_cast<const uint8_t*>(pos >= run->first_pos
                                                  ? p->records + (run->row_begin + pos - run->first_pos) * bytes
                                                  : p->window.record(run->slot, pos));
    }
    const int64_t group = chosen[i - num_window], per_block = p->global.entries_per_block();
    return reinterpret_cast<const uint8_t*>(p->global.main +
                                            run->block_table[group / per_block] * p->global.main_block_bytes +
                                            group % per_block * (p->head_dim / 2 + p->head_dim / 16));
  }
  // Keys [i, i + kKeys) to out [kKeys][dim], zeros past the end.
  DI_INLINE void decode(int64_t i, float* out) const {
    const int64_t dim = p->head_dim;
    for (int k = 0; k < kKeys; ++k, out += dim) {
      if (i + k >= count) {
        __builtin_memset(out, 0, static_cast<size_t>(dim) * 4);
      } else if (i + k < num_window) {
        decode_window_key(record(i + k), dim, out);
      } else {
        decode_entry(record(i + k), dim, out);
      }
    }
  }
};

// scores[key][heads], V vectors of heads from column `at`.
template <int V>
DI_INLINE void score_chunk(const float* q, int64_t heads, int64_t at, const float* keys, int64_t dim, float scale,
                           float* scores) {
  for (int k0 = 0; k0 < kKeys; k0 += 8) {
    VF acc[8][V];
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[k][v] = zero();
    }
    const float* key = keys + k0 * dim;
    for (int64_t c = 0; c < dim; ++c) {
      VF a[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) a[v] = load(q + c * heads + at + 16 * v);
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        const VF b = set(key[k * dim + c]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[k][v] = fma(a[v], b, acc[k][v]);
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(scores + (k0 + k) * heads + at + 16 * v, mul(acc[k][v], set(scale)));
    }
  }
}

// out[h][c] = out[h][c] * factor[h] + sum over keys weight[key][h] * key[key][c]
template <int H, int C>
DI_INLINE void add_values(const float* weights, int64_t heads, const float* factor, const float* keys, int64_t dim,
                          float* out) {
  VF acc[H][C];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[h][c] = mul(load(out + h * dim + 16 * c), set(factor[h]));
  }
#pragma GCC unroll 2
  for (int k = 0; k < kKeys; ++k) {
    VF v[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) v[c] = load(keys + k * dim + 16 * c);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const VF w = set(weights[k * heads + h]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[h][c] = fma(w, v[c], acc[h][c]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + h * dim + 16 * c, acc[h][c]);
  }
}

// Buffers of one thread for `heads` heads, a multiple of 16.
struct AttentionBuffers {
  float *q, *out, *keys, *scores, *top, *total, *factor;
  static int64_t floats(int64_t heads, int64_t dim) { return 2 * heads * dim + kKeys * dim + (kKeys + 3) * heads; }
  AttentionBuffers(float* at, int64_t heads, int64_t dim) {
    q = at, out = q + heads * dim, keys = out + heads * dim, scores = keys + kKeys * dim;
    top = scores + kKeys * heads, total = top + heads, factor = total + heads;
  }
};

struct AttentionUnit {
  const AttentionParams& p;
  int64_t t;
  int first_head, num_heads;
  int64_t heads;  // num_heads rounded up to whole vectors
  const AttentionBuffers& b;

  // Rotated queries, transposed to [dim][heads]; missing heads are zero.
  DI_INLINE void load_queries() const {
    const int64_t dim = p.head_dim;
    for (int h = 0; h < heads; ++h) {
      float* row = b.out + h * dim;
      if (h < num_heads) {
        rotate_row(p.q.f32(t) + (first_head + h) * dim, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols,
                   false, row);
      } else {
        __builtin_memset(row, 0, static_cast<size_t>(dim) * 4);
      }
    }
    for (int64_t h = 0; h < heads; h += 16) {
      for (int64_t c = 0; c < dim; c += 4) {
        const uint8_t* rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = reinterpret_cast<const uint8_t*>(b.out + (h + i) * dim + c);
        VI v[4];
        transpose_16x16(rows, v);
        for (int i = 0; i < 4; ++i) storei(b.q + (c + i) * heads + h, v[i]);
      }
    }
    __builtin_memset(b.out, 0, static_cast<size_t>(heads * dim) * 4);
    for (int64_t h = 0; h < heads; h += 16) {
      store(b.top + h, set(-1e30f));  // stands for "no key": the sink then takes everything and the result is 0
      store(b.total + h, zero());
      store(b.factor + h, set(1.f));
    }
  }
  DI_INLINE void score(int64_t valid) const {
    const int64_t dim = p.head_dim;
    int64_t h = 0;
    for (; h + 32 <= heads; h += 32) score_chunk<2>(b.q, heads, h, b.keys, dim, p.scale, b.scores);
    if (h < heads) score_chunk<1>(b.q, heads, h, b.keys, dim, p.scale, b.scores);
    for (int64_t k = valid; k < kKeys; ++k) {
      for (h = 0; h < heads; h += 16) store(b.scores + k * heads + h, set(-__builtin_inff()));
    }
  }
  DI_INLINE VF chunk_top(int64_t h) const {
    VF top = load(b.top + h);
    for (int k = 0; k < kKeys; ++k) top = vmax(top, load(b.scores + k * heads + h));
    return top;
  }
  // Scores become weights under the maximum so far; `factor` brings what was added before to it.
  DI_INLINE void weigh() const {
    for (int64_t h = 0; h < heads; h += 16) {
      const VF top = chunk_top(h), factor = vexp(sub(load(b.top + h), top));
      VF total = mul(load(b.total + h), factor);
      store(b.factor + h, factor);
      store(b.top + h, top);
      for (int k = 0; k < kKeys; ++k) {
        const VF e = vexp(sub(load(b.scores + k * heads + h), top));
        total = add(total, e);
        store(b.scores + k * heads + h, e);
      }
      store(b.total + h, total);
    }
  }
  DI_INLINE void add_chunk() const {
    const int64_t dim = p.head_dim;
    int h = 0;
    for (; h + 4 <= num_heads; h += 4) {
      int64_t c = 0;
      for (; c + 64 <= dim; c += 64) {
        add_values<4, 4>(b.scores + h, heads, b.factor + h, b.keys + c, dim, b.out + h * dim + c);
      }
      for (; c < dim; c += 16)
        add_values<4, 1>(b.scores + h, heads, b.factor + h, b.keys + c, dim, b.out + h * dim + c);
    }
    for (; h < num_heads; ++h) {
      for (int64_t c = 0; c < dim; c += 16) {
        add_values<1, 1>(b.scores + h, heads, b.factor + h, b.keys + c, dim, b.out + h * dim + c);
      }
    }
  }
  inline void run() const {
    const int64_t dim = p.head_dim;
    const Keys keys(p, t);
    load_queries();
    for (int64_t i = 0; i < keys.count; i += kKeys) {
      keys.decode(i, b.keys);
      score(keys.count - i);
      weigh();
      add_chunk();
    }
    for (int h = 0; h < num_heads; ++h) {
      alignas(64) float sink[16];
      store(sink, vexp(set(p.sink[first_head + h] - b.top[h])));
      const VF total = set(b.total[h] + sink[0]);
      float *row = b.out + h * dim, *out = p.out.f32(t) + (first_head + h) * dim;
      for (int64_t c = 0; c < dim; c += 16) store(row + c, div(load(row + c), total));
      rotate_row(row, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols, true, out);
    }
  }
};

}  // namespace

namespace DI_ISA {

void attention(const Context& ctx, const AttentionParams& p) {
  const int64_t num_rows = p.q.rows;
  const int threads = ctx.pool.size();
  // All heads of a row decode a key once; fewer only if the threads would otherwise idle.
  int64_t unit_heads = p.heads;
  while (unit_heads > 16 && num_rows * ((p.heads + unit_heads - 1) / unit_heads) < threads)
    unit_heads = (unit_heads / 2 + 15) / 16 * 16;
  const int64_t heads = (unit_heads + 15) / 16 * 16, per_row = (p.heads + unit_heads - 1) / unit_heads;
  Scratch scratch(ctx);
  const int64_t floats = AttentionBuffers::floats(heads, p.head_dim);
  float* buffers = static_cast<float*>(scratch.take(threads * floats * 4));
  int64_t next = 0;
  ctx.pool.share([&](int thread) {
    const AttentionBuffers b(buffers + thread * floats, heads, p.head_dim);
    for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < num_rows * per_row;) {
      const int first = static_cast<int>(i % per_row * unit_heads);
      const int count = p.heads - first < unit_heads ? p.heads - first : static_cast<int>(unit_heads);
      AttentionUnit{p, i / per_row, first, count, heads, b}.run();
    }
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
