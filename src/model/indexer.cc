#include "model/indexer.h"

#include <cmath>

namespace deepinfer::model {

void compress(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer) {
  const ModelConfig& c = ctx.config;
  const int ratio = c.compress_ratios[static_cast<size_t>(layer)], n = rows.num_rows(), groups = rows.num_groups(ratio);
  Scratch::Attention& a = s.attention;
  const TensorView x = head_rows(s.x, n);
  kernels::PoolParams pool;
  pool.batch = &rows.batch();
  pool.groups = rows.groups(ratio);
  pool.group_of_row = rows.group_of_row(ratio);
  pool.gain = w.compressor_norm;
  pool.eps = ctx.eps();
  pool.ratio = ratio;
  pool.latent = head_rows(a.latent, groups);
  if (ratio == 1) {
    pool.kv = head_rows(a.kv_raw, n);
    ctx.linear(x, w.compressor_kv, pool.kv);
  } else {
    pool.kv = head_rows(a.pool_kv, n);
    pool.gate = head_rows(a.pool_gate, n);
    pool.tail = ctx.parts.states->tail(layer);
    const kernels::LinearJob jobs[] = {{.weight = w.compressor_kv, .y = pool.kv, .keep_f32 = true},
                                       {.weight = w.compressor_gate, .y = pool.gate, .keep_f32 = true}};
    ctx.linear(x, jobs);
  }
  ctx.ops().pool(ctx.stream(), pool);
  if (groups == 0) return;
  const TensorView key_raw = head_rows(a.key_raw, groups);
  ctx.linear(pool.latent, w.index_k, key_raw);
  ctx.ops().global_write(ctx.stream(), {.batch = &rows.batch(),
                                        .groups = rows.groups(ratio),
                                        .group_of_row = pool.group_of_row,
                                        .latent = pool.latent,
                                        .key_raw = key_raw,
                                        .key_gain = w.index_k_norm,
                                        .eps = ctx.eps(),
                                        .freq = rows.frequencies().compressed,
                                        .cache = ctx.parts.global->cache(layer)});
}

void select(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer) {
  const ModelConfig& c = ctx.config;
  const int n = rows.num_rows();
  Scratch::Attention& a = s.attention;
  kernels::SelectParams p;
  p.batch = &rows.batch();
  p.q = head_rows(a.index_q, n);
  p.head_weights = head_rows(a.index_heads, n);
  ctx.linear(head_rows(a.q_latent, n), w.index_q, p.q);
  ctx.linear(head_rows(s.x, n), w.index_heads, p.head_weights);
  p.heads = c.index_n_heads;
  p.head_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.index_head_dim) * c.index_n_heads));
  p.rope = rows.rope(true);
  p.cache = ctx.parts.global->cache(c.kv_source(layer));
  const int source = c.candidate_source_layer_id;
  using Role = kernels::SelectParams::Role;
  p.role = layer == source ? Role::kSource : source >= 0 && layer > source ? Role::kChooser : Role::kPlain;
  p.top_k = c.index_topk;
  p.candidate_blocks = c.candidate_topk_blocks;
  p.candidate_block_size = c.candidate_block_size;
  p.max_positions = rows.max_positions();
  if (p.role != Role::kPlain) p.candidates = head_rows(s.candidates, n);
  p.chosen = head_rows(s.chosen, n);
  ctx.ops().select(ctx.stream(), p);
}

}  // namespace deepinfer::model
