// Experts of a batch in two fork-joins: gate and up of every chosen expert and of the shared one, then down.
//
//   1. units of (expert, 32 or 64 inner rows): gate and up of the expert's rows, the activation, and its packing for w2
//   2. units of output columns: for every expert in ascending id, its product is added to the rows that chose it, the
//      shared expert last: the order of the definition, and one thread owns each output
// Rows that chose an expert are listed by a counting sort, in batch order; no row's value depends on its neighbours.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int64_t kMaxExperts = 4096;
constexpr float kLowest = -3.40282347e38f;

DI_INLINE float scalar_max(const float* x, int n) {
  float top = x[0];
  for (int i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// silu(min(gate, limit)) * clamp(up): the activation before the routing weight
DI_INLINE VF swiglu_value(VF gate, VF up, float limit) {
  if (limit > 0) {
    gate = vmin(gate, set(limit));
    up = vmax(vmin(up, set(limit)), set(-limit));
  }
  return mul(div(gate, add(set(1.f), vexp(negate(gate)))), up);
}

// One expert's rows: slots first .. first + count - 1 of the sorted lists.
struct Group {
  const ExpertWeights* weights;
  int32_t first, count;
};

struct Plan {
  const MoeParams* p;
  const int32_t* rows;     // [slots] batch row of each slot, sorted by expert; then 0 .. T - 1 for the shared expert
  const int32_t* choices;  // [slots] index within the row's choices
  Group* groups;           // those with rows; the shared expert last
  int num_groups;
  Input inner_int8, inner_int16, inner_f32;  // activations by slot

  DI_INLINE const Input& inner(const Weight& w2) const {
    const Path path = path_of(w2.kind);
    return path == Path::kInt8 ? inner_int8 : path == Path::kInt16 ? inner_int16 : inner_f32;
  }
};

// `next`: codes of the gate rows that this thread is likely to read next.
inline void up_unit(const Plan& plan, const PackedInput& x, const Group& group, int64_t row, int64_t count,
                    const uint8_t* next) {
  alignas(64) float gate[kMaxTokens * kBlockRows], up[kMaxTokens * kBlockRows];
  const ExpertWeights& w = *group.weights;
  const bool is_shared = group.weights == plan.p->shared;
  for (int32_t s0 = 0; s0 < group.count; s0 += kMaxTokens) {
    Tokens tokens;
    tokens.input = x.of(w.w1.kind);
    tokens.rows = plan.rows + group.first + s0;
    tokens.count = group.count - s0 < kMaxTokens ? group.count - s0 : kMaxTokens;
    DI_ISA::product(w.w1, row, count, tokens, gate, kBlockRows, row_codes(w.w3, row));
    tokens.input = x.of(w.w3.kind);
    DI_ISA::product(w.w3, row, count, tokens, up, kBlockRows, next);
    const Input& inner = plan.inner(w.w2);
    for (int i = 0; i < tokens.count; ++i) {
      const int32_t slot = group.first + s0 + i;
      const float weight = is_shared ? 1.f : plan.p->weights.f32(plan.rows[slot])[plan.choices[slot]];
      float* a = gate + i * kBlockRows;
      const float* u = up + i * kBlockRows;
      for (int64_t c = 0; c < count; c += 16) {
        store(a + c, mul(set(weight), swiglu_value(load(a + c), load(u + c), plan.p->limit)));
      }
      if (inner.path == Path::kF32) {
        float* to = reinterpret_cast<float*>(const_cast<std::byte*>(inner.data) + slot * inner.row_bytes) + row;
        for (int64_t c = 0; c < count; c += 16) store(to + c, load(a + c));
      } else {
        pack_row(a, inner, slot, row / 32, count / 32);
      }
    }
  }
}

inline void down_unit(const Plan& plan, int64_t row, int64_t count, int64_t next_row) {
  alignas(64) float acc[kMaxTokens * kBlockRows];
  const MoeParams& p = *plan.p;
  const int64_t d = p.x.cols;
  const bool to_slots = !p.slots.empty();
  if (!to_slots) {
    for (int64_t t = 0; t < p.x.rows; ++t) {
      for_lanes(count, [&](int64_t c, int n) { store_any(p.z.f32(t) + row + c, zero(), n); });
    }
  }
  for (int g = 0; g < plan.num_groups; ++g) {
    const Group& group = plan.groups[g];
    if (to_slots && group.weights == p.shared) continue;
    const Weight& w = group.weights->w2;
    for (int32_t s0 = 0; s0 < group.count; s0 += kMaxTokens) {
      Tokens tokens;
      tokens.input = plan.inner(w);
      tokens.first = group.first + s0;
      tokens.count = group.count - s0 < kMaxTokens ? group.count - s0 : kMaxTokens;
      const bool is_last = g + 1 == plan.num_groups;
      const uint8_t* next =
          is_last ? row_codes(plan.groups[0].weights->w2, next_row) : row_codes(plan.groups[g + 1].weights->w2, row);
      DI_ISA::product(w, row, count, tokens, acc, kBlockRows, next);
      for (int i = 0; i < tokens.count; ++i) {
        const int32_t slot = group.first + s0 + i, t = plan.rows[slot];
        const float* a = acc + i * kBlockRows;
        if (to_slots) {
          float* to = p.slots.f32(t) + plan.choices[slot] * d + row;
          for_lanes(count, [&](int64_t c, int n) { store_any(to + c, load(a + c), n); });
        } else {
          float* to = p.z.f32(t) + row;
          for_lanes(count, [&](int64_t c, int n) { store_any(to + c, add(load_any(to + c, n), load(a + c)), n); });
        }
      }
    }
  }
}

// Lists the slots by expert. Choices of experts that other ranks own are left out.
inline int64_t sort_slots(const MoeParams& p, int32_t* rows, int32_t* choices, int32_t* begin) {
  const int64_t top_k = p.ids.cols, num_experts = static_cast<int64_t>(p.experts.size());
  for (int64_t e = 0; e <= num_experts; ++e) begin[e] = 0;
  for (int64_t t = 0; t < p.x.rows; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t e = p.ids.row<int32_t>(t)[k] - p.expert_begin;
      if (e >= 0 && e < num_experts) ++begin[e + 1];
    }
  }
  for (int64_t e = 0; e < num_experts; ++e) begin[e + 1] += begin[e];
  const int64_t total = begin[num_experts];
  for (int64_t t = 0; t < p.x.rows; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t e = p.ids.row<int32_t>(t)[k] - p.expert_begin;
      if (e < 0 || e >= num_experts) continue;
      const int32_t slot = begin[e]++;
      rows[slot] = static_cast<int32_t>(t);
      choices[slot] = static_cast<int32_t>(k);
    }
  }
  for (int64_t e = num_experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
  return total;
}

}  // namespace

namespace DI_ISA {

void moe(const Context& ctx, const MoeParams& p) {
  const int64_t num_rows = p.x.rows, top_k = p.ids.cols, num_experts = static_cast<int64_t>(p.experts.size());
  if (num_rows == 0) return;
  Scratch scratch(ctx);
  auto ints = [&](int64_t n) { return static_cast<int32_t*>(scratch.take(n * 4)); };
  int32_t *rows = ints(num_rows * (top_k + 1)), *choices = ints(num_rows * (top_k + 1)), *begin = ints(num_experts + 2);
  int64_t slots = sort_slots(p, rows, choices, begin);

  Group* groups = static_cast<Group*>(scratch.take((num_experts + 1) * static_cast<int64_t>(sizeof(Group))));
  Plan plan{&p, rows, choices, groups, 0, {}, {}, {}};
  for (int64_t e = 0; e < num_experts; ++e) {
    if (begin[e + 1] > begin[e]) plan.groups[plan.num_groups++] = {&p.experts[e], begin[e], begin[e + 1] - begin[e]};
  }
  const bool with_shared = p.shared != nullptr && p.slots.empty();
  if (with_shared) {
    for (int64_t t = 0; t < num_rows; ++t) rows[slots + t] = static_cast<int32_t>(t);
    plan.groups[plan.num_groups++] = {p.shared, static_cast<int32_t>(slots), static_cast<int32_t>(num_rows)};
    slots += num_rows;
  }
  if (!p.slots.empty()) {
    for_rows(ctx, num_rows, p.slots.cols, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) __builtin_memset(p.slots.f32(t), 0, static_cast<size_t>(p.slots.cols) * 4);
    });
  }
  if (plan.num_groups == 0) {
    if (p.slots.empty()) {
      for (int64_t t = 0; t < num_rows; ++t) __builtin_memset(p.z.f32(t), 0, static_cast<size_t>(p.z.cols) * 4);
    }
    return;
  }

  InputNeeds needs, inner_needs;
  int64_t inner = 0;
  for (int g = 0; g < plan.num_groups; ++g) {
    const ExpertWeights& w = *plan.groups[g].weights;
    needs.add(w.w1.kind);
    needs.add(w.w3.kind);
    inner_needs.add(w.w2.kind);
    if (w.w2.cols > inner) inner = w.w2.cols;
  }
  const PackedInput x = pack_input(ctx, scratch, p.x, needs);
  if (inner_needs.int8) plan.inner_int8 = take_input(scratch, Path::kInt8, slots, inner / 32);
  if (inner_needs.int16) plan.inner_int16 = take_input(scratch, Path::kInt16, slots, inner / 32);
  if (inner_needs.plain) plan.inner_f32 = take_input(scratch, Path::kF32, slots, inner / 32);

  const int threads = ctx.pool.size(), stride = ctx.pool.stride();
  int64_t total_inner = 0;
  for (int g = 0; g < plan.num_groups; ++g) total_inner += plan.groups[g].weights->w1.rows;
  // Units of whole groups of 32, which the activation's scales need.
  const int64_t step = total_inner >= int64_t{kBlockRows} * 4 * threads ? kBlockRows : 32;
  int64_t num_units = 0;
  for (int g = 0; g < plan.num_groups; ++g) num_units += (plan.groups[g].weights->w1.rows + step - 1) / step;
  struct Place {
    const Group* group;
    int64_t row;
  };
  auto place_of = [&](int64_t i) {
    const Group* group = plan.groups;
    for (int64_t n; i >= (n = (group->weights->w1.rows + step - 1) / step); ++group) i -= n;
    return Place{group, i * step};
  };
  ctx.pool.each(num_units, [&](int64_t i) {
    const Place at = place_of(i), later = place_of(i + stride < num_units ? i + stride : i);
    const int64_t left = at.group->weights->w1.rows - at.row;
    up_unit(plan, x, *at.group, at.row, left < step ? left : step, row_codes(later.group->weights->w1, later.row));
  });
  const int64_t d = p.x.cols, down_step = unit_rows(d, p.x.rows, threads);
  ctx.pool.each((d + down_step - 1) / down_step, [&](int64_t i) {
    const int64_t row = i * down_step;
    down_unit(plan, row, d - row < down_step ? d - row : down_step, row + stride * down_step);
  });
}

void swiglu(const Context& ctx, const SwigluParams& p) {
  for_rows(ctx, p.a.rows, 4 * p.a.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for_lanes(p.a.cols, [&](int64_t c, int n) {
        const VF v = swiglu_value(load_any(p.gate.f32(t) + c, n), load_any(p.up.f32(t) + c, n), p.limit);
        store_any(p.a.f32(t) + c, v, n);
      });
    }
  });
}

void combine(const Context& ctx, const CombineParams& p) {
  const int64_t d = p.z.cols;
  for_rows(ctx, p.z.rows, d * p.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for_lanes(d, [&](int64_t c, int n) {
        VF sum = zero();
        for (int k = 0; k < p.top_k; ++k) sum = add(sum, load_any(p.slots.f32(t) + k * d + c, n));
        store_any(p.z.f32(t) + c, add(sum, load_any(p.shared.f32(t) + c, n)), n);
      });
    }
  });
}

// s = sqrt(softplus(l)), sixteen experts at a time; the K best by a scan per choice (K is small), ascending ids.
void route(const Context& ctx, const RouteParams& p) {
  const int64_t num_experts = p.logits.cols;
  for_rows(ctx, p.logits.rows, 16 * num_experts, [&](int64_t begin, int64_t end) {
    alignas(64) float score[kMaxExperts], biased[kMaxExperts];
    for (int64_t t = begin; t < end; ++t) {
      const float* bias = p.is_image != nullptr && p.is_image[t] != 0 ? p.bias_image : p.bias;
      for_lanes(num_experts, [&](int64_t e, int n) {
        const VF l = div(load_any(p.logits.f32(t) + e, n), set(p.gate_temp));
        // log1p(u) for u = e^-|l| in (0, 1], as log(1 + u) u / ((1 + u) - 1); then + max(l, 0)
        const VF u = vexp(negate(vabs(l))), one = set(1.f), s = add(one, u), back = sub(s, one);
        const VF log1p = pick(less(zero(), back), mul(vlog(s), div(u, back)), u);
        const VF soft = pick(less(set(20.f), l), l, add(vmax(l, zero()), log1p));
        const VF root = vsqrt(soft);
        const VF with_bias = add(root, load_any(bias + e, n));
        store(score + e, root);
        // A NaN loses against every number, but K experts must come out.
        store(biased + e, pick(less(set(kLowest), with_bias), with_bias, set(kLowest)));
      });
      int32_t* ids = p.ids.row<int32_t>(t);
      float* weights = p.weights.f32(t);
      for (int k = 0; k < p.top_k; ++k) {
        float best = -__builtin_inff();
        for_lanes(num_experts, [&](int64_t e, int n) {
          const float top = n == 16 ? reduce_max(load(biased + e)) : scalar_max(biased + e, n);
          best = top > best ? top : best;
        });
        int64_t e = 0;
        while (biased[e] != best) ++e;
        biased[e] = -__builtin_inff();
        ids[k] = static_cast<int32_t>(e);
      }
      for (int k = 1; k < p.top_k; ++k) {  // insertion sort
        const int32_t id = ids[k];
        int j = k;
        for (; j > 0 && ids[j - 1] > id; --j) ids[j] = ids[j - 1];
        ids[j] = id;
      }
      double sum = 0;
      for (int k = 0; k < p.top_k; ++k) sum += score[ids[k]];
      const float divisor = p.top_k > 1 ? static_cast<float>(sum) + 1e-20f : 1.f;
      for (int k = 0; k < p.top_k; ++k) weights[k] = score[ids[k]] / divisor * p.scale;
    }
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
