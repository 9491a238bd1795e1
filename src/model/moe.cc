#include "model/moe.h"

namespace deepinfer::model {
namespace {

// Each rank computes its experts' outputs, its share of the shared expert's width and then of its output rows. Slots
// and columns are exchanged, and everybody adds them in the one order.
void sharded_experts(const Context& ctx, const BlockWeights& w, Scratch& s, int n, const kernels::RouteParams& choice,
                     kernels::MoeParams p) {
  const ModelConfig& c = ctx.config;
  const parallel::Shards& shards = ctx.shards;
  Scratch::Experts& e = s.experts;
  p.slots = head_rows(e.slots, n).col_range(0, p.ids.cols * c.hidden_size);
  ctx.ops().route_and_moe(ctx.stream(), choice, p);
  ctx.parts.comm->merge(ctx.stream(), p.slots);

  const parallel::Range width = shards.shared_width;
  const TensorView a = head_rows(e.a, n), shared = head_rows(e.shared, n);
  const TensorView gate = head_rows(e.gate, n).col_range(width.begin, width.size());
  const TensorView up = head_rows(e.up, n).col_range(width.begin, width.size());
  if (!width.empty()) {
    const kernels::LinearJob jobs[] = {{.weight = w.shared.w1, .y = gate}, {.weight = w.shared.w3, .y = up}};
    ctx.linear(p.x, jobs);
    ctx.ops().swiglu(ctx.stream(),
                     {.gate = gate, .up = up, .a = a.col_range(width.begin, width.size()), .limit = p.limit});
  }
  ctx.parts.comm->all_gather(ctx.stream(), {a, shards.shared_width_bounds});
  ctx.sharded_linear(a, w.shared.w2, shared, shards.hidden, shards.hidden_bounds);
  ctx.ops().combine(ctx.stream(),
                    {.slots = p.slots, .shared = shared, .top_k = static_cast<int>(p.ids.cols), .z = p.z});
}

}  // namespace

void experts(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer) {
  const ModelConfig& c = ctx.config;
  const int n = rows.num_rows(), top_k = c.top_k(layer);
  const bool is_draft = layer >= c.num_hidden_layers;
  Scratch::Experts& e = s.experts;
  const TensorView x = head_rows(s.x, n), logits = head_rows(e.logits, n).col_range(0, c.num_experts(layer));
  kernels::MoeParams p;
  p.x = x;
  p.ids = head_rows(e.ids, n).col_range(0, top_k);
  p.weights = head_rows(e.weights, n).col_range(0, top_k);
  ctx.linear(x, w.gate, logits, true);
  const kernels::RouteParams choice{.logits = logits,
                                    .bias = w.bias,
                                    .bias_image = w.bias_image,
                                    .is_image = rows.batch().is_image,
                                    .top_k = top_k,
                                    .gate_temp = static_cast<float>(c.gate_temp),
                                    .scale = static_cast<float>(c.routed_scaling_factor),
                                    .ids = p.ids,
                                    .weights = p.weights};
  p.experts = w.experts;
  p.device_experts = w.device_experts;
  p.expert_begin = static_cast<int>(is_draft ? ctx.shards.draft_experts.begin : ctx.shards.experts.begin);
  p.limit = static_cast<float>(c.swiglu_limit);
  p.z = head_rows(s.y, n);
  if (ctx.is_sharded()) return sharded_experts(ctx, w, s, n, choice, p);
  p.shared = &w.shared;
  ctx.ops().route_and_moe(ctx.stream(), choice, p);
}

}  // namespace deepinfer::model
