// Attention of each row over its window keys and its chosen entries, all heads sharing one key that is also the value.
//
//   A unit is up to kMaxRows consecutive rows of one run, which share nearly all window keys, and a set of heads. Heads
//   are taken in groups of kGroupHeads. In segments that stay in cache the keys are decoded and meet all rows of the
//   unit: first for the scores, where a lane is one of two channels of one head of a group, then, when a row's scores
//   have become weights, for the sum, where a lane is a channel.
//
// Order of additions, depending on nothing but the row's own keys, window before chosen, both ascending: a score is two
// fma chains over channels in ascending order, even channels + odd channels; the sum of the weights takes key 4 j + i
// in chain i, ((0 + 2) + (1 + 3)) + the sink; an output is one fma chain over keys in ascending order, times 1 / sum.
#pragma once

#include "kernels/cpu/body/attention_keys.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int kGroupHeads = AttentionPlan::kGroupHeads;
constexpr float kLog2E = 1.44269504f;
// Tiles as large as registers allow. Of scores: sets (a group of heads of a row) x keys; of sums: heads x vectors.
#if defined(__AVX512VNNI__)
constexpr int kTileSets = 4, kTileKeys = 6, kLoneKeys = 8;
constexpr int kTileHeads = 8, kTileVectors = 2;
#else
constexpr int kTileSets = 2, kTileKeys = 2, kLoneKeys = 4;
constexpr int kTileHeads = 4, kTileVectors = 1;
#endif
static_assert(kTileSets <= AttentionPlan::kSpareKeys + 1);

// Queries and scores of a set: a group of heads of one row.
struct Set {
  const float* q;  // [dim / 2][heads of the group][2]
  float* scores;   // [keys][heads of the group]
};

// Scores of K keys for S sets, from key `at` of each set on.
template <int S, int K>
DI_INLINE void score_tile(const Set* sets, const float* const* keys, int64_t dim, float scale, int64_t at) {
  VF acc[S][K];
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) acc[s][k] = zero();
  }
  for (int64_t c = 0; c < dim; c += 2) {
    VF q[S];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) q[s] = load(sets[s].q + c * kGroupHeads);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const VF pair = broadcast_pair(keys[k] + c);
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) acc[s][k] = fma(q[s], pair, acc[s][k]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
#pragma GCC unroll 4
    for (int k = 0; k < K; k += 2) {
      const VF sums = add_pairs(acc[s][k], acc[s][k + 1]);
      store(sets[s].scores + (at + k) * kGroupHeads, mul(sums, set(scale)));
    }
  }
}
// Scores of `count` keys for S sets; one score behind them is spoiled where the count is odd.
template <int S>
DI_INLINE void score_keys(const Set* sets, const float* const* keys, int64_t dim, int64_t count, float scale) {
  constexpr int kKeys = S == 1 ? kLoneKeys : kTileKeys;
  int64_t k = 0;
  for (; k + kKeys <= count; k += kKeys) score_tile<S, kKeys>(sets, keys + k, dim, scale, k);
  for (; k < count; k += 2) {
    const float* pair[2] = {keys[k], keys[k + 1 < count ? k + 1 : k]};
    score_tile<S, 2>(sets, pair, dim, scale, k);
  }
}

// out[h][channels of V vectors] += sum over `count` keys of weights[key][h] * key.
template <int H, int V>
DI_INLINE void value_tile(const float* weights, const float* const* keys, int64_t channel, int64_t dim, int64_t count,
                          float* out) {
  VF acc[H][V];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[h][v] = load(out + h * dim + 16 * v);
  }
#pragma GCC unroll 2
  for (int64_t k = 0; k < count; ++k, weights += kGroupHeads) {
    const float* key = keys[k] + channel;
    VF value[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) value[v] = load(key + 16 * v);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const VF w = set(weights[h]);
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
// The same for all channels and num_heads <= kGroupHeads heads: as many tiles of H heads as fit, then of half of it.
template <int H = kTileHeads>
inline void add_values(const float* weights, int num_heads, const float* const* keys, int64_t dim, int64_t count,
                       float* out) {
  int h = 0;
  for (; h + H <= num_heads; h += H) {
    for (int64_t c = 0; c < dim; c += 16 * kTileVectors)
      value_tile<H, kTileVectors>(weights + h, keys, c, dim, count, out + h * dim + c);
  }
  if constexpr (H > 1) {
    if (h < num_heads) add_values<H / 2>(weights + h, num_heads - h, keys, dim, count, out + h * dim);
  }
}

// Scores of a group, in powers of two, become weights under their maximum and the sinks'; inverse_sums [heads of the
// group, and again]. Up to three scores behind them are spoiled.
DI_INLINE void softmax(float* scores, int64_t count, const float* sinks, float* inverse_sums) {
  const int64_t end = (count + 3) / 4 * 4;
  for (int64_t i = count * kGroupHeads; i < end * kGroupHeads; i += kGroupHeads)
    store_half(scores + i, -__builtin_inff());
  const VF sink = load(sinks);
  VF top = sink;
  for (int64_t k = 0; k < end; k += 2) top = vmax(load(scores + k * kGroupHeads), top);
  top = vmax(top, swap_halves(top));
  VF sums[2] = {zero(), zero()};
  for (int64_t k = 0; k < end; k += 4) {
    for (int i = 0; i < 2; ++i) {
      float* at = scores + (k + 2 * i) * kGroupHeads;
      const VF e = vexp2(sub(load(at), top));
      sums[i] = add(sums[i], e);
      store(at, e);
    }
  }
  const VF total = add(sums[0], sums[1]);
  store(inverse_sums, div(set(1.f), add(add(total, swap_halves(total)), vexp2(sub(sink, top)))));
}

// Queries of up to kGroupHeads heads, [heads][dim], as a set holds them; heads that are not there are zeros.
template <bool kIsWhole>
DI_INLINE void pack_queries(const float* q, int num_heads, int64_t dim, float* out) {
  alignas(64) static constexpr float kNone[4] = {};
  for (int64_t c = 0; c < dim; c += 4) {
    auto head = [&](int h) {
      return reinterpret_cast<const uint8_t*>(kIsWhole || h < num_heads ? q + h * dim + c : kNone);
    };
    const VI even = load_4x16(head(0), head(2), head(4), head(6)), odd = load_4x16(head(1), head(3), head(5), head(7));
    storei(out + c * kGroupHeads, zip_lo64(even, odd));
    storei(out + (c + 2) * kGroupHeads, zip_hi64(even, odd));
  }
}

// Rows first_row .. first_row + num_rows - 1, all of one run, and heads first_head .. first_head + num_heads - 1.
struct AttentionUnit {
  const AttentionParams& p;
  const AttentionPlan& plan;
  const Run& run;
  int64_t first_row, num_rows;
  int first_head, num_heads, num_groups;
  float *window, *queries, *scores, *inverse_sums;
  const float **window_keys, **entry_keys;
  DecodedEntries entries;
  RowKeys rows[AttentionPlan::kMaxRows];

  AttentionUnit(const AttentionParams& params, const AttentionPlan& plan_, float* buffer, int64_t row, int64_t count,
                int head, int heads)
      : p(params),
        plan(plan_),
        run(params.batch->runs[static_cast<size_t>(params.batch->run_of_row[row])]),
        first_row(row),
        num_rows(count),
        first_head(head),
        num_heads(heads),
        num_groups((heads + kGroupHeads - 1) / kGroupHeads),
        window(buffer + plan.window_at),
        queries(buffer + plan.queries_at),
        scores(buffer + plan.scores_at),
        inverse_sums(buffer + plan.inverse_sums_at),
        window_keys(reinterpret_cast<const float**>(buffer + plan.window_keys_at)),
        entry_keys(reinterpret_cast<const float**>(buffer + plan.entry_keys_at)),
        entries{buffer + plan.entries_at, reinterpret_cast<int32_t*>(buffer + plan.entry_of_slot_at),
                reinterpret_cast<int32_t*>(buffer + plan.run_of_slots_at), plan.entry_slots} {
    for (int64_t k = 0; k < plan.window_keys; ++k) window_keys[k] = window + k * p.head_dim;
    for (int64_t r = 0; r < num_rows; ++r) rows[r] = keys_of_row(p, run, row + r);
    entries.start(params.batch->run_of_row[row]);
  }

  DI_INLINE float* queries_of(int64_t r, int g) const {
    return queries + (r * num_groups + g) * kGroupHeads * p.head_dim;
  }
  DI_INLINE float* scores_of(int64_t r, int g) const {
    return scores + ((r * num_groups + g) * plan.score_keys + AttentionPlan::kSpareKeys) * kGroupHeads;
  }
  DI_INLINE float* inverse_sums_of(int64_t r, int g) const {
    return inverse_sums + (r * num_groups + g) * 2 * kGroupHeads;
  }
  DI_INLINE float* out(int64_t r, int g) const {
    return p.out.f32(first_row + r) + (first_head + g * kGroupHeads) * p.head_dim;
  }
  DI_INLINE int heads_of(int g) const {
    const int left = num_heads - g * kGroupHeads;
    return left < kGroupHeads ? left : kGroupHeads;
  }
  DI_INLINE void rotate(int64_t r, int g, const float* from, bool inverse) const {
    const int64_t t = first_row + r, dim = p.head_dim;
    for (int h = 0; h < heads_of(g); ++h) {
      rotate_row(from + h * dim, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols, inverse,
                 out(r, g) + h * dim);
    }
  }

  // f(first position, number of keys) of each segment of window keys. One segment is decoded once, more of them in
  // every pass.
  enum class Pass : uint8_t { kFirst, kSecond };
  template <typename F>
  DI_INLINE void for_window(Pass pass, F&& f) const {
    const int64_t begin = rows[0].begin, end = rows[num_rows - 1].end;
    const bool is_decoded = pass == Pass::kSecond && end - begin <= plan.window_keys;
    for (int64_t s = begin; s < end; s += plan.window_keys) {
      const int64_t count = end - s < plan.window_keys ? end - s : plan.window_keys;
      for (int64_t k = 0; k < count && !is_decoded; ++k)
        decode_window(window_record(p, run, s + k), p.head_dim, window + k * p.head_dim);
      f(s, count);
    }
  }
  // f(first choice, number of keys) of each segment of a row's chosen entries.
  template <typename F>
  DI_INLINE void for_chosen(int64_t r, F&& f) {
    for (int64_t s = 0; s < rows[r].num_chosen; s += plan.entry_slots) {
      const int64_t left = rows[r].num_chosen - s, count = left < plan.entry_slots ? left : plan.entry_slots;
      entries.find(p, run, rows[r], s, count, entry_keys);
      f(s, count);
    }
  }

  // Scores of keys for `count` rows from r on; index(row) is the first key's number among the row's keys.
  template <typename F>
  DI_INLINE void score_rows(int64_t r, int64_t count, const float* const* keys, int64_t num_keys, F&& index) const {
    const int64_t num_sets = count * num_groups;
    for (int64_t i = 0; i < num_sets; i += kTileSets) {
      Set sets[kTileSets];
      const int n = num_sets - i < kTileSets ? static_cast<int>(num_sets - i) : kTileSets;
      for (int s = 0; s < n; ++s) {
        const int64_t row = r + (i + s) / num_groups;
        const int g = static_cast<int>((i + s) % num_groups);
        sets[s] = {queries_of(row, g), scores_of(row, g) + index(row) * kGroupHeads};
      }
      if (n == kTileSets) {
        score_keys<kTileSets>(sets, keys, p.head_dim, num_keys, kLog2E * p.scale);
      } else {
        for (int s = 0; s < n; ++s) score_keys<1>(sets + s, keys, p.head_dim, num_keys, kLog2E * p.scale);
      }
    }
  }
  // Some rows at a time meet the window keys of any of them. What a row scores in excess lies in front of its first
  // score or behind its last one, where its chosen entries come later.
  inline void score() {
    for_window(Pass::kFirst, [&](int64_t begin, int64_t count) {
      for (int64_t r = 0; r < num_rows; r += kTileSets) {
        const int64_t n = num_rows - r < kTileSets ? num_rows - r : kTileSets, end = rows[r + n - 1].end;
        const int64_t from = rows[r].begin > begin ? rows[r].begin : begin;
        const int64_t to = end < begin + count ? end : begin + count;
        if (from >= to) continue;
        score_rows(r, n, window_keys + from - begin, to - from, [&](int64_t row) { return from - rows[row].begin; });
      }
    });
    for (int64_t r = 0; r < num_rows; ++r) {
      for_chosen(r, [&](int64_t first, int64_t count) {
        score_rows(r, 1, entry_keys, count, [&](int64_t row) { return rows[row].num_window() + first; });
      });
    }
  }
  DI_INLINE void add_to(int64_t r, const float* const* keys, int64_t index, int64_t count) const {
    for (int g = 0; g < num_groups; ++g)
      add_values(scores_of(r, g) + index * kGroupHeads, heads_of(g), keys, p.head_dim, count, out(r, g));
  }
  inline void add() {
    for_window(Pass::kSecond, [&](int64_t begin, int64_t count) {
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t from = rows[r].begin > begin ? rows[r].begin : begin;
        const int64_t to = rows[r].end < begin + count ? rows[r].end : begin + count;
        if (from < to) add_to(r, window_keys + from - begin, from - rows[r].begin, to - from);
      }
    });
    for (int64_t r = 0; r < num_rows; ++r) {
      for_chosen(r, [&](int64_t first, int64_t count) { add_to(r, entry_keys, rows[r].num_window() + first, count); });
    }
  }
  template <typename F>
  DI_INLINE void for_sets(F&& f) const {
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int g = 0; g < num_groups; ++g) f(r, g);
    }
  }
  inline void run_rows() {
    const int64_t dim = p.head_dim;
    for_sets([&](int64_t r, int g) {
      rotate(r, g, p.q.f32(first_row + r) + (first_head + g * kGroupHeads) * dim, false);
      if (heads_of(g) == kGroupHeads) {
        pack_queries<true>(out(r, g), kGroupHeads, dim, queries_of(r, g));
      } else {
        pack_queries<false>(out(r, g), heads_of(g), dim, queries_of(r, g));
      }
    });
    score();
    for_sets([&](int64_t r, int g) {
      alignas(64) float sinks[2 * kGroupHeads] = {};
      for (int h = 0; h < heads_of(g); ++h)
        sinks[h] = sinks[kGroupHeads + h] = kLog2E * p.sink[first_head + g * kGroupHeads + h];
      softmax(scores_of(r, g), rows[r].count(), sinks, inverse_sums_of(r, g));
      __builtin_memset(out(r, g), 0, static_cast<size_t>(heads_of(g) * dim) * 4);
    });
    add();
    for_sets([&](int64_t r, int g) {
      for (int h = 0; h < heads_of(g); ++h) {
        float* row = out(r, g) + h * dim;
        const VF inverse = set(inverse_sums_of(r, g)[h]);
        for (int64_t c = 0; c < dim; c += 16) store(row + c, mul(load(row + c), inverse));
      }
      rotate(r, g, out(r, g), true);
    });
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
  while (unit_heads > kGroupHeads && num_rows * ((p.heads + unit_heads - 1) / unit_heads) < threads)
    unit_heads = (unit_heads / 2 + kGroupHeads - 1) / kGroupHeads * kGroupHeads;
  const int64_t splits = (p.heads + unit_heads - 1) / unit_heads;
  const AttentionPlan plan = plan_attention(unit_heads, p.head_dim, most_keys);
  const int64_t unit_rows = rows_per_unit(num_rows, threads, plan.rows);
  Scratch scratch(ctx);
  float* buffers = static_cast<float*>(scratch.take(threads * plan.floats * 4));
  for (int t = 0; t < threads; ++t)  // no entries are decoded yet
    *reinterpret_cast<int32_t*>(buffers + t * plan.floats + plan.run_of_slots_at) = -1;
  const int64_t num_units = (num_rows + unit_rows - 1) / unit_rows * splits;
  ctx.pool.each_on(num_units, [&](int thread, int64_t i) {
    const int first_head = static_cast<int>(i % splits * unit_heads);
    const int heads = p.heads - first_head < unit_heads ? p.heads - first_head : static_cast<int>(unit_heads);
    int64_t row = i / splits * unit_rows;
    const int64_t end = row + unit_rows < num_rows ? row + unit_rows : num_rows;
    while (row < end) {  // the rows of one run after the other
      int64_t count = 1;
      while (row + count < end && p.batch->run_of_row[row + count] == p.batch->run_of_row[row]) ++count;
      AttentionUnit(p, plan, buffers + thread * plan.floats, row, count, first_head, heads).run_rows();
      row += count;
    }
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
