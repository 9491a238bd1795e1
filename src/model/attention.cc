#include "model/attention.h"

#include <cmath>

#include "model/indexer.h"

namespace deepinfer::model {
namespace {

int ratio_of(const ModelConfig& config, int layer) {
  return config.compress_ratios[static_cast<size_t>(layer)];
}

kernels::WindowKeyParams window_key_params(const Context& ctx, const BlockWeights& w, const TensorView& raw,
                                           const kernels::Rope& rope, std::byte* records) {
  return {.raw = raw,
          .gain = w.kv_norm,
          .eps = ctx.eps(),
          .rope = rope,
          .format = ctx.parts.states->plan().format,
          .records = records};
}

// This rank's heads, and its groups of the output projection.
void attend(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer, AttentionKind kind) {
  const ModelConfig& c = ctx.config;
  const int ratio = ratio_of(c, layer), n = rows.num_rows();
  Scratch::Attention& a = s.attention;
  const auto heads = static_cast<int>(ctx.shards.heads.size());
  ctx.linear(head_rows(a.q_latent, n), w.wq_b, head_rows(a.q, n));
  kernels::AttentionParams p;
  p.batch = &rows.batch();
  p.q = head_rows(a.q, n);
  p.rope = rows.rope(ratio > 0);
  p.records = a.records;
  p.window = ctx.parts.states->window(layer);
  p.block_mask = kind == AttentionKind::kDraftBlock;
  if (ratio > 0) {
    p.chosen = head_rows(s.chosen, n);
    p.global = ctx.parts.global->cache(c.kv_source(layer));
  }
  p.sink = w.sink;
  p.heads = heads;
  p.head_dim = c.head_dim;
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
  p.out = head_rows(a.out, n);
  ctx.ops().attention(ctx.stream(), p);
  ctx.ops().grouped_linear(
      ctx.stream(),
      {.x = p.out,
       .weight = w.wo_a,
       .groups = static_cast<int>(ctx.shards.groups.size()),
       .y = head_rows(a.groups, n).col_range(ctx.shards.group_columns.begin, ctx.shards.group_columns.size())});
}

}  // namespace

void attention(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer,
               AttentionKind kind) {
  const int ratio = ratio_of(ctx.config, layer), n = rows.num_rows();
  Scratch::Attention& a = s.attention;
  const TensorView x = head_rows(s.x, n), q_latent = head_rows(a.q_latent, n), kv_raw = head_rows(a.kv_raw, n);
  ctx.ops().prefetch(ctx.stream(), w.wq_b);
  const kernels::LinearJob jobs[] = {{.weight = w.wq_a, .y = q_latent}, {.weight = w.wkv, .y = kv_raw}};
  ctx.linear(x, jobs);
  ctx.ops().norm_and_window_keys(ctx.stream(), {.x = q_latent, .y = q_latent, .gain = w.q_norm, .eps = ctx.eps()},
                                 window_key_params(ctx, w, kv_raw, rows.rope(ratio > 0), a.records));
  if (!w.index_q.empty()) select(ctx, w, s, rows, layer);

  ctx.ops().prefetch(ctx.stream(), w.wo_a);
  ctx.ops().prefetch(ctx.stream(), w.wo_b);
  if (!ctx.shards.heads.empty()) attend(ctx, w, s, rows, layer, kind);
  if (kind == AttentionKind::kBackbone)
    ctx.ops().window_store(ctx.stream(),
                           {.batch = &rows.batch(), .records = a.records, .cache = ctx.parts.states->window(layer)});
  const TensorView groups = head_rows(a.groups, n), y = head_rows(s.y, n);
  ctx.parts.comm->all_gather(ctx.stream(), {groups, ctx.shards.group_column_bounds});
  ctx.ops().prefetch(ctx.stream(), w.gate);
  ctx.sharded_linear(groups, w.wo_b, y, ctx.shards.hidden, ctx.shards.hidden_bounds);
}

void store_window_keys(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, const TensorView& x,
                       int layer) {
  const int n = rows.num_rows();
  ctx.linear(x, w.wkv, head_rows(s.attention.kv_raw, n));
  ctx.ops().window_keys(ctx.stream(),
                        window_key_params(ctx, w, head_rows(s.attention.kv_raw, n),
                                          rows.rope(ratio_of(ctx.config, layer) > 0), s.attention.records));
  ctx.ops().window_store(
      ctx.stream(), {.batch = &rows.batch(), .records = s.attention.records, .cache = ctx.parts.states->window(layer)});
}

}  // namespace deepinfer::model
