#include "weights/random_shapes.h"

#include <algorithm>

#include "base/file.h"
#include "weights/engram_hash.h"

namespace deepinfer::weights {
namespace {

// Ratios and sources of `n` layers in the proportions of the released 40: two window layers, 18 of pairs with a source
// every six, 20 of single tokens with an index source every four, Engram in layers 1 and 14, drafts from the last
// three.
void lay_out(ModelConfig& c, int n) {
  c.num_hidden_layers = n;
  const int window = std::min(n, 2);
  const int pairs = ((n - window) * 18 + 19) / 38;
  const int boundary = window + pairs;
  c.compress_ratios.assign(static_cast<size_t>(n + c.num_nextn_predict_layers), 0);
  for (int i = window; i < n; ++i) c.compress_ratios[static_cast<size_t>(i)] = i < boundary ? 2 : 1;
  c.kv_source_layer_ids.clear();
  for (int i = window; i < boundary; i += 6) c.kv_source_layer_ids.push_back(i);
  c.index_source_layer_ids = c.kv_source_layer_ids;
  c.candidate_source_layer_id = -1;
  if (boundary < n) {
    c.kv_source_layer_ids.push_back(boundary);
    const int step = std::clamp((n - boundary) * 2 / 3, 1, 4);
    for (int i = boundary; i < n; i += step) c.index_source_layer_ids.push_back(i);
    c.candidate_source_layer_id = boundary;
  }
  c.engram_layer_ids.clear();
  for (int i : {1, 14}) {
    if (i < boundary) c.engram_layer_ids.push_back(i);
  }
  c.dspark_target_layer_ids.clear();
  for (int i = std::max(0, n - 3); i < n; ++i) c.dspark_target_layer_ids.push_back(i);
}

ModelConfig bench_shape() {
  ModelConfig c;
  c.hidden_size = 1536, c.num_hidden_layers = 12, c.num_attention_heads = 16, c.head_dim = 256;
  c.q_lora_rank = 512, c.o_lora_rank = 512, c.o_groups = 4, c.index_n_heads = 16;
  c.moe_intermediate_size = 768, c.n_routed_experts = 64, c.vocab_size = 16384;
  c.rms_norm_eps = 1e-6;
  c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0};
  c.kv_source_layer_ids = {2, 4, 6}, c.index_source_layer_ids = {2, 4, 6, 9};
  c.candidate_source_layer_id = 6, c.candidate_topk_blocks = 256;
  c.engram_layer_ids = {1, 4}, c.engram_vocab_size = 20000, c.engram_head_dim = 64;
  c.dspark_n_routed_experts = 16, c.dspark_num_experts_per_tok = 4, c.dspark_markov_rank = 128;
  c.dspark_target_layer_ids = {5, 8, 11};
  c.vision = {.num_hidden_layers = 2, .hidden_size = 256, .num_attention_heads = 4, .intermediate_size = 704};
  return c;
}

ModelConfig tiny_shape() {
  ModelConfig c;
  c.hidden_size = 256, c.num_hidden_layers = 8, c.num_attention_heads = 8, c.head_dim = 128, c.qk_rope_head_dim = 32;
  c.q_lora_rank = 128, c.o_lora_rank = 64, c.o_groups = 2, c.index_n_heads = 8, c.index_head_dim = 64,
  c.index_topk = 64;
  c.moe_intermediate_size = 128, c.n_routed_experts = 16, c.num_experts_per_tok = 3, c.vocab_size = 3072;
  c.max_position_embeddings = 65536;
  c.rope_scaling->original_max_position_embeddings = 4096;
  c.compress_ratios = {0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0};
  c.kv_source_layer_ids = {1, 3, 4}, c.index_source_layer_ids = {1, 3, 4, 6};
  c.candidate_source_layer_id = 4, c.candidate_topk_blocks = 16;
  c.engram_layer_ids = {1, 3}, c.engram_vocab_size = 1000, c.engram_n_heads = 2, c.engram_head_dim = 32;
  c.dspark_n_routed_experts = 8, c.dspark_num_experts_per_tok = 2, c.dspark_markov_rank = 32;
  c.dspark_target_layer_ids = {5, 6, 7};
  return c;
}

// Ids at the end of the vocabulary, as generated tokenizers have them.
void place_ids(ModelConfig& c) {
  c.image_token_id = c.vocab_size - 1;
  c.dspark_noise_token_id = c.vocab_size - 2;
}

void set_engram_rows(ModelConfig& c) {
  c.engram_num_embeddings = engram_table_rows(static_cast<int>(c.engram_layer_ids.size()), c.engram_max_ngram_size,
                                              c.engram_n_heads, c.engram_vocab_size);
}

}  // namespace

Result<ModelConfig> random_shape(const std::string& shape, const ShapeOptions& options) {
  ModelConfig c;
  const bool is_named = shape == "flash" || shape == "bench" || shape == "tiny";
  if (options.layers && (shape != "flash" || *options.layers < 1 || *options.layers > 512)) {
    return fail(Code::kInvalid, "--layers {} works with --shape flash, 1..512", *options.layers);
  }
  if (shape == "flash") {
    lay_out(c, options.layers.value_or(40));
    c.engram_vocab_size = 65536;
  } else if (shape == "bench") {
    c = bench_shape();
  } else if (shape == "tiny") {
    c = tiny_shape();
  } else if (file_exists(shape)) {
    DI_TRY(std::string text, read_file(shape));
    auto parsed = parse_config(text);
    if (!parsed) return fail(parsed.error().code, "{}: {}", shape, parsed.error().message);
    c = *parsed;
  } else {
    return fail(Code::kInvalid, "--shape is '{}', allowed are flash, bench, tiny or the path of a config.json", shape);
  }
  if (options.vocab) c.vocab_size = *options.vocab;
  if (options.vocab || (is_named && shape != "flash")) place_ids(c);
  if (options.compressed_vocab) {
    c.engram_compressed_vocab_size = *options.compressed_vocab;
  } else if (options.vocab || is_named) {
    // The released proportion.
    c.engram_compressed_vocab_size = static_cast<int>(int64_t{c.vocab_size} * 99092 / 129280);
  }
  if (options.experts) {
    c.n_routed_experts = *options.experts;
    c.num_experts_per_tok = std::min(c.num_experts_per_tok, c.n_routed_experts);
    c.dspark_n_routed_experts = std::min(c.dspark_n_routed_experts, c.n_routed_experts);
    c.dspark_num_experts_per_tok = std::min(c.dspark_num_experts_per_tok, c.dspark_n_routed_experts);
  }
  if (options.engram_vocab) c.engram_vocab_size = *options.engram_vocab;
  if (options.engram_vocab && (c.engram_vocab_size < 2 || c.engram_vocab_size > 2147483647)) {
    return fail(Code::kInvalid, "--engram-vocab is {}, allowed are 2..2147483647", c.engram_vocab_size);
  }
  if (is_named || options.engram_vocab) set_engram_rows(c);
  return parse_config(config_json(c));
}

}  // namespace deepinfer::weights
