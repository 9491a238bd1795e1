#include <algorithm>

#include "model/context.h"

namespace deepinfer::model {

Scratch Scratch::plan(Arena& arena, const ModelConfig& c, const parallel::Shards& shards, DType activation,
                      kernels::RecordFormat format, int64_t rows) {
  Scratch s;
  s.x = arena.matrix(activation, rows, c.hidden_size);
  s.y = arena.matrix(activation, rows, c.hidden_size);
  s.chosen = arena.matrix(DType::kI32, rows, c.index_topk);
  if (c.candidate_source_layer_id >= 0) s.candidates = arena.matrix(DType::kI32, rows, c.candidate_topk_blocks);

  const int64_t mark = arena.used();
  Attention& a = s.attention;
  a.q_latent = arena.matrix(activation, rows, c.q_lora_rank);
  a.kv_raw = arena.matrix(activation, rows, c.head_dim);
  a.records = arena.array<std::byte>(rows * kernels::window_record_bytes(format, c.head_dim));
  a.groups = arena.matrix(activation, rows, int64_t{c.o_groups} * c.o_lora_rank);
  a.pool_kv = arena.matrix(DType::kF32, rows, c.head_dim);
  a.pool_gate = arena.matrix(DType::kF32, rows, c.head_dim);
  a.latent = arena.matrix(activation, rows, c.head_dim);
  a.key_raw = arena.matrix(activation, rows, c.index_head_dim);
  // The indexer is done before the query heads are made.
  const int64_t attention_mark = arena.used();
  a.index_q = arena.matrix(activation, rows, int64_t{c.index_n_heads} * c.index_head_dim);
  a.index_heads = arena.matrix(activation, rows, c.index_n_heads);
  const int64_t index_end = arena.used();
  arena.reset(attention_mark);
  a.q = arena.matrix(activation, rows, shards.heads.size() * c.head_dim);
  a.out = arena.matrix(activation, rows, shards.heads.size() * c.head_dim);
  const int64_t attention_end = std::max(arena.used(), index_end);

  arena.reset(mark);
  Experts& e = s.experts;
  const int top_k = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok);
  e.logits = arena.matrix(DType::kF32, rows, std::max(c.n_routed_experts, c.dspark_n_routed_experts));
  e.ids = arena.matrix(DType::kI32, rows, top_k);
  e.weights = arena.matrix(DType::kF32, rows, top_k);
  if (shards.num_ranks > 1) {
    e.slots = arena.matrix(activation, rows, int64_t{top_k} * c.hidden_size);
    e.gate = arena.matrix(activation, rows, c.moe_intermediate_size);
    e.up = arena.matrix(activation, rows, c.moe_intermediate_size);
    e.a = arena.matrix(activation, rows, c.moe_intermediate_size);
    e.shared = arena.matrix(activation, rows, c.hidden_size);
  }
  const int64_t experts_end = arena.used();

  arena.reset(mark);
  if (!c.engram_layer_ids.empty()) {
    s.engram.rows = arena.matrix(activation, rows, int64_t{c.engram_columns()} * c.engram_head_dim);
    s.engram.kv = arena.matrix(activation, rows, int64_t{c.hc_mult + 1} * c.hidden_size);
  }
  arena.reset(std::max({attention_end, experts_end, arena.used()}));
  return s;
}

}  // namespace deepinfer::model
