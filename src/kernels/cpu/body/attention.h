// Attention of each row over its window keys and its chosen entries, all heads sharing one key that is also the value.
//
//   A unit is up to kMaxRows consecutive rows of one run, which share nearly all window keys, and a set of heads. In
//   segments that stay in cache the keys are decoded and meet all rows of the unit: first for the scores (lanes are
//   keys), then, when a row's scores have become weights, for the sum (lanes are channels).
//
// Order of additions, depending on nothing but the row's own keys, window before chosen, both ascending: a score is one
// fma chain over channels in ascending order; the sum of the weights takes keys l, l + 16, ... in lane l, then the lane
// tree, then the sink; an output is one fma chain over keys in ascending order, times 1 / sum.
#pragma once

#include "kernels/cpu/body/attention_keys.h"

namespace deepinfer::kernels::cpu {
namespace {

// Tiles of heads x vectors: as many sums as registers allow beside the keys and a broadcast.
#if defined(__AVX512VNNI__)
constexpr int kTileHeads = 8, kTileVectors = 2;
#else
constexpr int kTileHeads = 4, kTileVectors = 1;
#endif

// f<H>(h) over pieces of H heads: as many of the largest size as fit, then of half of it, down to one head.
template <int H = kTileHeads, typename F>
DI_INLINE void for_heads(int h, int num_heads, F&& f) {
  for (; h + H <= num_heads; h += H) f.template operator()<H>(h);
  if constexpr (H > 1) for_heads<H / 2>(h, num_heads, f);
}

// scores[h][key] of 16 V keys, decoded across.
template <int H, int V>
DI_INLINE void score_tile(const float* q, int64_t dim, const float* keys, int64_t key_stride, float scale,
                          float* scores, int64_t score_stride) {
  VF acc[H][V];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[h][v] = zero();
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < dim; ++c, keys += key_stride) {
    VF k[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) k[v] = load(keys + 16 * v);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const VF b = set(q[h * dim + c]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[h][v] = fma(k[v], b, acc[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(scores + h * score_stride + 16 * v, mul(acc[h][v], set(scale)));
  }
}

// out[h][channels of V vectors] += sum over `count` keys, decoded along, of weights[h][key] * key.
template <int H, int V>
DI_INLINE void value_tile(const float* weights, int64_t weight_stride, const float* keys, int64_t dim, int64_t count,
                          float* out) {
  VF acc[H][V];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[h][v] = load(out + h * dim + 16 * v);
  }
#pragma GCC unroll 2
  for (int64_t k = 0; k < count; ++k, keys += dim) {
    VF value[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) value[v] = load(keys + 16 * v);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const VF w = set(weights[h * weight_stride + k]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[h][v] = fma(w, value[v], acc[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(out + h * dim + 16 * v, acc[h][v]);
  }
}

// Scores of `count` keys; up to 15 floats behind them are spoiled.
inline void score_keys(const float* q, int num_heads, int64_t dim, const float* keys, int64_t key_stride, int64_t count,
                       float scale, float* scores, int64_t score_stride) {
  for_heads(0, num_heads, [&]<int H>(int h) {
    int64_t k = 0;
    for (; k + 16 * (kTileVectors - 1) < count; k += 16 * kTileVectors) {
      score_tile<H, kTileVectors>(q + h * dim, dim, keys + k, key_stride, scale, scores + h * score_stride + k,
                                  score_stride);
    }
    if (k < count)
      score_tile<H, 1>(q + h * dim, dim, keys + k, key_stride, scale, scores + h * score_stride + k, score_stride);
  });
}
inline void add_values(const float* weights, int64_t weight_stride, int num_heads, const float* keys, int64_t dim,
                       int64_t count, float* out) {
  for_heads(0, num_heads, [&]<int H>(int h) {
    for (int64_t c = 0; c < dim; c += 16 * kTileVectors) {
      value_tile<H, kTileVectors>(weights + h * weight_stride, weight_stride, keys + c, dim, count, out + h * dim + c);
    }
  });
}

// Scores of one head become weights under their maximum and the sink's; returns 1 / sum.
DI_INLINE float softmax(float* scores, int64_t count, float sink) {
  for (int64_t k = count; k % 16 != 0; ++k) scores[k] = -__builtin_inff();
  VF largest = set(sink);
  for (int64_t k = 0; k < count; k += 16) largest = vmax(load(scores + k), largest);
  const VF top = set(reduce_max(largest));
  VF total = zero();
  for (int64_t k = 0; k < count; k += 16) {
    const VF e = vexp(sub(load(scores + k), top));
    total = add(total, e);
    store(scores + k, e);
  }
  alignas(64) float of_sink[16];
  store(of_sink, vexp(sub(set(sink), top)));
  return 1.f / (reduce(total) + of_sink[0]);
}

// Rows first_row .. first_row + num_rows - 1, all of one run, and heads first_head .. first_head + num_heads - 1.
struct AttentionUnit {
  const AttentionParams& p;
  const AttentionPlan& plan;
  const Run& run;
  int64_t first_row, num_rows;
  int first_head, num_heads;
  float *keys, *q, *scores, *inverse_sums;  // a segment; [rows][heads] of dim, of plan.score_stride, of 1
  RowKeys rows[AttentionPlan::kMaxRows];

  AttentionUnit(const AttentionParams& params, const AttentionPlan& plan_, float* buffers, int64_t row, int64_t count,
                int head, int heads)
      : p(params),
        plan(plan_),
        run(params.batch->runs[static_cast<size_t>(params.batch->run_of_row[row])]),
        first_row(row),
        num_rows(count),
        first_head(head),
        num_heads(heads) {
    keys = buffers;
    q = keys + plan.key_floats();
    scores = q + num_rows * num_heads * p.head_dim;
    inverse_sums = scores + num_rows * num_heads * plan.score_stride;
    for (int64_t r = 0; r < num_rows; ++r) rows[r] = keys_of_row(p, run, row + r);
  }

  DI_INLINE float* queries(int64_t r) const { return q + r * num_heads * p.head_dim; }
  DI_INLINE float* scores_of(int64_t r) const { return scores + r * num_heads * plan.score_stride; }
  DI_INLINE float* out(int64_t r) const { return p.out.f32(first_row + r) + first_head * p.head_dim; }
  DI_INLINE void rotate(int64_t r, const float* from, bool inverse, float* to) const {
    const int64_t t = first_row + r;
    for (int h = 0; h < num_heads; ++h) {
      rotate_row(from + h * p.head_dim, p.head_dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols, inverse,
                 to + h * p.head_dim);
    }
  }

  // f(row, its first key in the segment, that key's index in the row, number of keys) for each segment of window keys,
  // which `decode(count, record_of)` has decoded.
  template <typename D, typename F>
  DI_INLINE void for_window(D&& decode, F&& f) const {
    const int64_t end = rows[num_rows - 1].end;
    for (int64_t s = rows[0].begin; s < end; s += plan.segment_keys) {
      const int64_t stop = s + plan.segment_keys < end ? s + plan.segment_keys : end;
      decode(stop - s, [&](int64_t i) { return window_record(p, run, s + i); });
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t from = rows[r].begin > s ? rows[r].begin : s, to = rows[r].end < stop ? rows[r].end : stop;
        if (from < to) f(r, from - s, from - rows[r].begin, to - from);
      }
    }
  }
  template <typename D, typename F>
  DI_INLINE void for_chosen(D&& decode, F&& f) const {
    for (int64_t r = 0; r < num_rows; ++r) {
      const RowKeys& row = rows[r];
      for (int64_t s = 0; s < row.num_chosen; s += plan.segment_keys) {
        const int64_t left = row.num_chosen - s, count = left < plan.segment_keys ? left : plan.segment_keys;
        decode(count, [&](int64_t i) { return entry_record(p, run, row.chosen[s + i]); });
        f(r, int64_t{0}, row.num_window() + s, count);
      }
    }
  }

  inline void score() const {
    const int64_t dim = p.head_dim, stride = plan.segment_keys;
    auto score_row = [&](int64_t r, int64_t key, int64_t index, int64_t count) {
      score_keys(queries(r), num_heads, dim, keys + key, stride, count, p.scale, scores_of(r) + index,
                 plan.score_stride);
    };
    for_window([&](int64_t n, auto&& record) { decode_across<Record::kWindow>(n, dim, record, keys, stride); },
               score_row);
    for_chosen([&](int64_t n, auto&& record) { decode_across<Record::kEntry>(n, dim, record, keys, stride); },
               score_row);
  }
  inline void add() const {
    const int64_t dim = p.head_dim;
    auto add_row = [&](int64_t r, int64_t key, int64_t index, int64_t count) {
      add_values(scores_of(r) + index, plan.score_stride, num_heads, keys + key * dim, dim, count, out(r));
    };
    for_window([&](int64_t n, auto&& record) { decode_along<Record::kWindow>(n, dim, record, keys); }, add_row);
    for_chosen([&](int64_t n, auto&& record) { decode_along<Record::kEntry>(n, dim, record, keys); }, add_row);
  }
  inline void run_rows() const {
    const int64_t dim = p.head_dim;
    for (int64_t r = 0; r < num_rows; ++r) rotate(r, p.q.f32(first_row + r) + first_head * dim, false, queries(r));
    score();
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int h = 0; h < num_heads; ++h) {
        inverse_sums[r * num_heads + h] =
            softmax(scores_of(r) + h * plan.score_stride, rows[r].count(), p.sink[first_head + h]);
      }
      __builtin_memset(out(r), 0, static_cast<size_t>(num_heads * dim) * 4);
    }
    add();
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int h = 0; h < num_heads; ++h) {
        float* row = out(r) + h * dim;
        for (int64_t c = 0; c < dim; c += 16) store(row + c, mul(load(row + c), set(inverse_sums[r * num_heads + h])));
      }
      rotate(r, out(r), true, out(r));
    }
  }
};

// Rows of a unit: a whole number of rounds over the threads, as few as the plan allows.
DI_INLINE int64_t rows_per_unit(int64_t num_rows, int threads, int64_t most) {
  const int64_t rounds = (num_rows + most * threads - 1) / (most * threads);
  return (num_rows + rounds * threads - 1) / (rounds * threads);
}

}  // namespace

namespace DI_ISA {

void attention(const Context& ctx, const AttentionParams& p) {
  const int64_t num_rows = p.q.rows;
  if (num_rows == 0) return;
  const int threads = ctx.pool.size();
  int64_t block_rows = 0;
  for (const Run& run : p.batch->runs) block_rows = run.num_rows > block_rows ? run.num_rows : block_rows;
  const int64_t most_keys = p.window.window + (p.block_mask ? block_rows : 0) + (p.chosen.empty() ? 0 : p.chosen.cols);
  // All heads of a row decode a key once; fewer only if the threads would otherwise idle.
  int64_t unit_heads = p.heads;
  while (unit_heads > kTileHeads && num_rows * ((p.heads + unit_heads - 1) / unit_heads) < threads)
    unit_heads = (unit_heads / 2 + kTileHeads - 1) / kTileHeads * kTileHeads;
  const int64_t splits = (p.heads + unit_heads - 1) / unit_heads;
  const AttentionPlan plan = plan_attention(unit_heads, p.head_dim, most_keys);
  const int64_t unit_rows = rows_per_unit(num_rows, threads, plan.rows);
  Scratch scratch(ctx);
  const int64_t floats = attention_floats(plan);
  float* buffers = static_cast<float*>(scratch.take(threads * floats * 4));
  const int64_t num_units = (num_rows + unit_rows - 1) / unit_rows * splits;
  ctx.pool.each_on(num_units, [&](int thread, int64_t i) {
    const int first_head = static_cast<int>(i % splits * unit_heads);
    const int heads = p.heads - first_head < unit_heads ? p.heads - first_head : static_cast<int>(unit_heads);
    int64_t row = i / splits * unit_rows;
    const int64_t end = row + unit_rows < num_rows ? row + unit_rows : num_rows;
    while (row < end) {  // the rows of one run after the other
      int64_t count = 1;
      while (row + count < end && p.batch->run_of_row[row + count] == p.batch->run_of_row[row]) ++count;
      AttentionUnit(p, plan, buffers + thread * floats, row, count, first_head, heads).run_rows();
      row += count;
    }
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
