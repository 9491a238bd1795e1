// Index scores over packed FP4 keys and the choice of entries (model.md 3.4).
//
//   Sixteen keys are decoded to bytes (12 + twice the value) and meet all heads of the row: exact integer sums inside
//   groups of 32 channels, times a power of two, added in ascending group order, heads added in ascending order.
//   Rows are taken in batches whose scores fit the scratch;
//   the score of a row is cut into pieces of kPieceKeys over all threads, so that one row over a million keys uses the
//   whole machine.
//
// The k best are found in O(n) without sorting: a search on the ordered bits (by radix, or bit by bit among few) finds
// the k-th largest value, one pass collects what is larger and the first of what is equal (lower index first).
#pragma once

#include "kernels/cpu/body/records.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int64_t kPieceKeys = 2048;
constexpr int kMaxIndexGroups = 16;  // index_dim <= 512

// Queries of one row, packed for the integer products.
struct IndexQuery {
  int8_t* codes;     // [heads][dim], in each 8 channels the even ones first
  float* scales;     // [heads][groups], a quarter of the power of two: both sides are doubled
  int32_t* offsets;  // [heads][groups]
  float* weights;    // [heads]
};
DI_INLINE int64_t index_query_bytes(int64_t heads, int64_t dim) {
  return heads * (dim + dim / 32 * 8 + 4) + 64;
}

DI_INLINE IndexQuery query_at(std::byte* at, int64_t heads, int64_t dim) {
  IndexQuery q;
  q.codes = reinterpret_cast<int8_t*>(at);
  q.scales = reinterpret_cast<float*>(at + heads * dim);
  q.offsets = reinterpret_cast<int32_t*>(q.scales + heads * (dim / 32));
  q.weights = reinterpret_cast<float*>(q.offsets + heads * (dim / 32));
  return q;
}

DI_INLINE void pack_query(const SelectParams& p, int64_t t, const IndexQuery& q) {
  const int64_t dim = p.q.cols / p.heads, groups = dim / 32;
  alignas(64) float row[kMaxIndexGroups * 32];
  for (int h = 0; h < p.heads; ++h) {
    rotate_row(p.q.f32(t) + h * dim, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols, false, row);
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t scale = fp4e8_scale(row + 32 * g);
      const VF inverse = set(std::bit_cast<float>((254u - scale) << 23)), two = set(2.f);
      const VI a = to_int(mul(e2m1_value(e2m1_code(mul(load(row + 32 * g), inverse))), two));
      const VI b = to_int(mul(e2m1_value(e2m1_code(mul(load(row + 32 * g + 16), inverse))), two));
      store_s8_even_odd(q.codes + h * dim + 32 * g, a);
      store_s8_even_odd(q.codes + h * dim + 32 * g + 16, b);
      q.offsets[h * groups + g] = -12 * reducei(addi(a, b));
      q.scales[h * groups + g] = std::bit_cast<float>(static_cast<uint32_t>(scale) << 23) * 0.25f;
    }
    q.weights[h] = p.head_weights.f32(t)[h] * p.head_scale;
  }
}

// Sum over heads of weight * relu(similarity) for sixteen decoded keys; H heads from `h` on are added to `sum`.
template <int G, int H>
DI_INLINE VF add_heads(const IndexQuery& q, int64_t h, int64_t num_groups, const VI* keys, const VF* key_scales,
                       VF sum) {
  const int64_t groups = G > 0 ? G : num_groups;
  VF similarity[H];
#pragma GCC unroll 4
  for (int n = 0; n < H; ++n) similarity[n] = zero();
#pragma GCC unroll 4
  for (int64_t g = 0; g < groups; ++g) {
    VI dot[H];
#pragma GCC unroll 4
    for (int n = 0; n < H; ++n) dot[n] = seti(q.offsets[(h + n) * groups + g]);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const VI key = keys[8 * g + k];
#pragma GCC unroll 4
      for (int n = 0; n < H; ++n)
        dot[n] = dot_u8s8(dot[n], key, broadcast32(q.codes + (h + n) * 32 * groups + 32 * g + 4 * k));
    }
#pragma GCC unroll 4
    for (int n = 0; n < H; ++n) {
      similarity[n] = fma(to_float(dot[n]), mul(key_scales[g], set(q.scales[(h + n) * groups + g])), similarity[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < H; ++n) sum = add(sum, mul(vmax(similarity[n], zero()), set(q.weights[h + n])));
  return sum;
}
template <int G>
VF score_heads(const SelectParams& p, const IndexQuery& q, int64_t groups, const VI* keys, const VF* key_scales) {
  VF sum = zero();
  int h = 0;
  for (; h + 4 <= p.heads; h += 4) sum = add_heads<G, 4>(q, h, groups, keys, key_scales, sum);
  for (; h < p.heads; ++h) sum = add_heads<G, 1>(q, h, groups, keys, key_scales, sum);
  return sum;
}

// scores[0 .. 16) of the keys from `key` on, a multiple of 16; keys past the end of the block give garbage.
DI_INLINE VF score_keys(const SelectParams& p, const IndexQuery& q, const int32_t* block_table, int64_t key) {
  const int64_t dim = p.cache.index_dim, groups = dim / 32, per_block = p.cache.entries_per_block(),
                entry = key % per_block;
  const uint8_t* block =
      reinterpret_cast<const uint8_t*>(p.cache.index) + block_table[key / per_block] * p.cache.index_block_bytes;
  const uint8_t *codes = block + entry * (dim / 2), *scales = block + per_block * (dim / 2) + entry * groups;
  VI decoded[kMaxIndexGroups * 8];
  VF key_scales[kMaxIndexGroups];
  const Fp4Codec codec;
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = codes + i * (dim / 2) + 16 * g;
    VI v[4];
    transpose_16x16(rows, v);
    for (int c = 0; c < 4; ++c) {
      decoded[8 * g + 2 * c] = codec.even(v[c]);
      decoded[8 * g + 2 * c + 1] = codec.odd(v[c]);
    }
    alignas(64) int32_t exponents[16];
    for (int i = 0; i < 16; ++i) exponents[i] = scales[i * groups + g];
    key_scales[g] = ue8m0_value<0>(loadi(exponents));
  }
  if (groups == 4) return score_heads<4>(p, q, groups, decoded, key_scales);  // the released width, unrolled
  return score_heads<0>(p, q, groups, decoded, key_scales);
}

// Floats in the order of their bits as unsigned numbers; -inf and NaN become 0, which is never chosen; -0 equals 0.
DI_INLINE VI ordered_bits(VF v) {
  v = add(v, zero());
  const VI u = bits(v), flip = ori(srai<31>(u), seti(static_cast<int32_t>(0x80000000u)));
  const VI ordered = xori(u, flip);
  const VM valid = less(set(-__builtin_inff()), v);
  return pick_int(valid, ordered, zeroi());
}

// One step of the radix search: among the scores whose leading bits are `prefix` (all of them if kDone is 0), finds the
// kWidth next bits of the wanted-th largest. False if there are fewer valid scores than wanted.
template <int kDone, int kWidth>
DI_INLINE bool refine(const float* scores, int64_t n, uint32_t& prefix, int64_t& wanted) {
  uint32_t counts[1 << kWidth] = {};
  constexpr int kShift = 32 - kDone - kWidth;
  const VI leading = seti(static_cast<int32_t>(prefix));
  for_lanes(n, [&](int64_t i, int count) {
    const VI keys = ordered_bits(
        count == 16 ? load(scores + i) : pick(first_lanes(count), load_n(scores + i, count), set(-__builtin_inff())));
    alignas(64) uint32_t lanes[16];
    if constexpr (kDone == 0) {
      storei(lanes, srli<kShift>(keys));  // what is never chosen falls into bucket 0, together with the most negative
      for (int j = 0; j < count; ++j) ++counts[lanes[j]];
    } else {
      uint32_t left = lane_mask(equal(srli<32 - kDone>(keys), leading));
      if (left == 0) return;
      storei(lanes, keys);
      for (; left != 0; left &= left - 1) {
        const uint32_t key = lanes[__builtin_ctz(left)];
        if (key != 0) ++counts[key >> kShift & ((1u << kWidth) - 1)];
      }
    }
  });
  int64_t bucket = (1 << kWidth) - 1, seen = 0;
  for (; bucket >= 0 && seen + counts[bucket] < wanted; --bucket) seen += counts[bucket];
  if (bucket < 0) return false;
  wanted -= seen;
  prefix = prefix << kWidth | static_cast<uint32_t>(bucket);
  return true;
}

// The k-th largest of the scores, as ordered bits, and how many of those equal to it are taken; false if there are
// fewer than k valid ones.
DI_INLINE bool search_many(const float* scores, int64_t n, int64_t k, uint32_t& threshold, int64_t& equals) {
  equals = k;
  return refine<0, 11>(scores, n, threshold, equals) && refine<11, 11>(scores, n, threshold, equals) &&
         refine<22, 10>(scores, n, threshold, equals);
}
// The same bit by bit: for a few scores faster than clearing and adding up counters.
constexpr int64_t kFewScores = 1024;
inline bool search_few(const float* scores, int64_t n, int64_t k, uint32_t& threshold, int64_t& equals) {
  VI keys[kFewScores / 16];
  int64_t vectors = 0;
  for_lanes(n, [&](int64_t i, int count) {
    keys[vectors++] = ordered_bits(
        count == 16 ? load(scores + i) : pick(first_lanes(count), load_n(scores + i, count), set(-__builtin_inff())));
  });
  auto num_above = [&](uint32_t limit) {
    int64_t count = 0;
    for (int64_t i = 0; i < vectors; ++i)
      count += __builtin_popcount(lane_mask(above(keys[i], seti(static_cast<int32_t>(limit)))));
    return count;
  };
  if (num_above(0) < k) return false;
  threshold = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (num_above((threshold | bit) - 1) >= k) threshold |= bit;
  }
  equals = k - num_above(threshold);
  return true;
}

// out: indices of the k largest of scores [n] in ascending order, then -1 up to k.
inline void top_k(const float* scores, int64_t n, int64_t k, int32_t* out) {
  uint32_t threshold = 0;
  int64_t equals = 0;
  const bool enough =
      n <= kFewScores ? search_few(scores, n, k, threshold, equals) : search_many(scores, n, k, threshold, equals);
  if (!enough) threshold = 0, equals = 0;  // all of them
  int64_t at = 0;
  const VI limit = seti(static_cast<int32_t>(threshold));
  for_lanes(n, [&](int64_t i, int count) {
    const VI keys = ordered_bits(
        count == 16 ? load(scores + i) : pick(first_lanes(count), load_n(scores + i, count), set(-__builtin_inff())));
    const VM larger = above(keys, limit);
    uint32_t take = lane_mask(larger);
    uint32_t same = equals > 0 ? lane_mask(equal(keys, limit)) : 0;
    if ((take | same) == 0) return;
    for (; same != 0 && equals > 0; same &= same - 1, --equals) take |= same & -same;
    if (take == lane_mask(larger) && at + 16 <= k) {
      at += append_lanes(out + at, larger, static_cast<int32_t>(i));
    } else {
      for (; take != 0; take &= take - 1) out[at++] = static_cast<int32_t>(i) + __builtin_ctz(take);
    }
  });
  for (; at < k; ++at) out[at] = -1;
}

struct SelectRow {
  int64_t t, visible;
  const Run* run;
  IndexQuery query;
  float* scores;
};

DI_INLINE void score_piece(const SelectParams& p, const SelectRow& row, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; g += 16) store(row.scores + g, score_keys(p, row.query, row.run->block_table, g));
}

// Only the entries of the candidate blocks; the rest is -inf.
inline void score_candidates(const SelectParams& p, const SelectRow& row) {
  const int64_t size = p.candidate_block_size;
  for (int64_t g = 0; g < row.visible; g += 16) store(row.scores + g, set(-__builtin_inff()));
  int64_t scored_to = 0;  // candidates ascend
  const int32_t* blocks = p.candidates.row<int32_t>(row.t);
  for (int64_t i = 0; i < p.candidates.cols && blocks[i] >= 0; ++i) {
    const int64_t begin = blocks[i] * size, end = begin + size < row.visible ? begin + size : row.visible;
    for (int64_t g = (begin > scored_to ? begin : scored_to) / 16 * 16; g < end; g += 16) {
      alignas(64) float s[16];
      store(s, score_keys(p, row.query, row.run->block_table, g));
      for (int64_t k = g > begin ? g : begin; k < g + 16 && k < end; ++k) row.scores[k] = s[k - g];
    }
    scored_to = begin;
  }
}

inline void choose(const SelectParams& p, const SelectRow& row, float* block_scores) {
  if (p.role == SelectParams::Role::kSource) {
    const int64_t size = p.candidate_block_size, blocks = (row.visible + size - 1) / size;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t end = (b + 1) * size < row.visible ? (b + 1) * size : row.visible;
      float best = -__builtin_inff();
      for (int64_t g = b * size; g < end; ++g) best = row.scores[g] > best ? row.scores[g] : best;
      block_scores[b] = b + 1 == blocks ? __builtin_inff() : best;  // the block of the newest visible entry
    }
    top_k(block_scores, blocks, p.candidates.cols, p.candidates.row<int32_t>(row.t));
  }
  top_k(row.scores, row.visible, p.chosen.cols, p.chosen.row<int32_t>(row.t));
}

}  // namespace

namespace DI_ISA {

void select(const Context& ctx, const SelectParams& p) {
  const int64_t num_rows = p.q.rows, dim = p.q.cols / p.heads;
  const bool is_chooser = p.role == SelectParams::Role::kChooser;
  int64_t longest = 0;
  for (int64_t t = 0; t < num_rows; ++t) {
    const int64_t visible = (p.batch->positions[t] + 1) / p.cache.ratio;
    longest = visible > longest ? visible : longest;
  }
  // Without a choice to make, everything visible is chosen (and no score is needed).
  if (p.role == SelectParams::Role::kPlain && longest <= p.chosen.cols) {
    for (int64_t t = 0; t < num_rows; ++t) {
      const int64_t visible = (p.batch->positions[t] + 1) / p.cache.ratio;
      int32_t* out = p.chosen.row<int32_t>(t);
      for (int64_t i = 0; i < p.chosen.cols; ++i) out[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
    return;
  }

  Scratch scratch(ctx);
  const int64_t score_floats = (longest + 31) / 16 * 16, query_bytes = (index_query_bytes(p.heads, dim) + 63) / 64 * 64;
  const int64_t block_floats = p.role == SelectParams::Role::kSource ? longest / p.candidate_block_size + 32 : 0;
  const int64_t row_bytes =
      (score_floats + (block_floats + 15) / 16 * 16) * 4 + query_bytes + static_cast<int64_t>(sizeof(SelectRow));
  int64_t at_once = (scratch.left() - 1024) / row_bytes;
  if (at_once > num_rows) at_once = num_rows;
  if (at_once < 1) at_once = 1;
  SelectRow* rows = static_cast<SelectRow*>(scratch.take(at_once * static_cast<int64_t>(sizeof(SelectRow))));
  std::byte* queries = static_cast<std::byte*>(scratch.take(at_once * query_bytes));
  float* scores = static_cast<float*>(scratch.take(at_once * score_floats * 4));
  float* blocks = static_cast<float*>(scratch.take(at_once * block_floats * 4));

  for (int64_t base = 0; base < num_rows; base += at_once) {
    const int64_t count = num_rows - base < at_once ? num_rows - base : at_once;
    for_rows(ctx, count, 4 * p.q.cols, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = base + i;
        rows[i] = {t, (p.batch->positions[t] + 1) / p.cache.ratio,
                   &p.batch->runs[static_cast<size_t>(p.batch->run_of_row[t])],
                   query_at(queries + i * query_bytes, p.heads, dim), scores + i * score_floats};
        pack_query(p, t, rows[i].query);
      }
    });
    const bool in_pieces = !is_chooser && count < 4 * ctx.pool.size() && longest > kPieceKeys;
    if (in_pieces) {
      const int64_t pieces = (longest + kPieceKeys - 1) / kPieceKeys;
      ctx.pool.each(count * pieces, [&](int64_t i) {
        const SelectRow& row = rows[i / pieces];
        const int64_t begin = i % pieces * kPieceKeys, end = begin + kPieceKeys;
        score_piece(p, row, begin, end < row.visible ? end : row.visible);
      });
    }
    auto finish = [&](int64_t i) {
      if (is_chooser) score_candidates(p, rows[i]);
      if (!is_chooser && !in_pieces) score_piece(p, rows[i], 0, rows[i].visible);
      choose(p, rows[i], blocks + i * block_floats);
    };
    if (count * longest < 256) {
      for (int64_t i = 0; i < count; ++i) finish(i);
    } else {
      ctx.pool.each(count, finish);
    }
  }
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
