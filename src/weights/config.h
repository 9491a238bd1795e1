// The model configuration: config.json of a checkpoint, flat, checked.
//
//   Field names are the keys of `text_config`; defaults are the released values. parse_config requires every key whose
//   absence would leave the meaning open, refuses every value that would change it (naming the key, the value and what
//   is allowed), and collects keys it does not know in `unknown_keys`.
//
//   Layers 0 .. num_hidden_layers - 1 are the backbone, num_hidden_layers + s is draft stage s (compress_ratios only).
//
// A ModelConfig that came from parse_config satisfies every condition that the forward pass relies on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// YaRN, applied with compress_rope_theta only; the amplitude stays 1.
struct RopeScaling {
  double factor = 16, beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

struct VisionConfig {
  int num_hidden_layers = 0, hidden_size = 0, num_attention_heads = 0, intermediate_size = 0;
  int patch_size = 14, downsample_ratio = 3, max_image_tokens = 1024;
  int64_t min_pixels = 295936;
  double rope_theta = 10000;
  std::optional<double> max_wh_ratio;
};

// Record format of the compressed cache (model.md 6.3): e2m1 in groups of 16 as trained, or e4m3 in groups of 32.
enum class KvFormat { kFp4, kFp8 };

struct ModelConfig {
  int bos_token_id = 0, eos_token_id = 1, pad_token_id = 2, image_token_id = 129264;

  int vocab_size = 129280, hidden_size = 5120, num_hidden_layers = 40;
  int64_t max_position_embeddings = 1048576;
  double rms_norm_eps = 1e-20;

  int num_attention_heads = 64, head_dim = 512, qk_rope_head_dim = 64;
  int q_lora_rank = 1280, o_lora_rank = 1024, o_groups = 8;
  int sliding_window = 128;
  double rope_theta = 10000, compress_rope_theta = 160000;
  std::optional<RopeScaling> rope_scaling = RopeScaling{};
  std::vector<int> compress_ratios;                              // [layers + draft stages], each 0, 1 or 2
  std::vector<int> kv_source_layer_ids, index_source_layer_ids;  // ascending; the first is part of the second
  int index_n_heads = 32, index_head_dim = 128, index_topk = 512;
  int candidate_source_layer_id = 20;  // -1: no candidate stage
  int candidate_topk_blocks = 2048, candidate_block_size = 8;

  double swiglu_limit = 10, routed_scaling_factor = 1.5, gate_temp = 1;
  int moe_intermediate_size = 2304, n_routed_experts = 384, num_experts_per_tok = 6;

  int hc_mult = 4, hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;

  std::vector<int> engram_layer_ids;           // ascending; empty: no Engram
  std::vector<int64_t> engram_num_embeddings;  // rows a table, equal to the prime sums
  int engram_max_ngram_size = 4, engram_n_heads = 8, engram_head_dim = 256;
  int64_t engram_vocab_size = 16000000;
  int engram_pad_token_id = 2, engram_compressed_vocab_size = 99092;

  int num_nextn_predict_layers = 3;  // draft stages; 0: no draft module (and dspark_block_size 0)
  int dspark_block_size = 5, dspark_noise_token_id = 128799, dspark_markov_rank = 256;
  std::vector<int> dspark_target_layer_ids;
  int dspark_n_routed_experts = 128, dspark_num_experts_per_tok = 3;

  VisionConfig vision;                    // num_hidden_layers 0: text only
  std::vector<std::string> unknown_keys;  // "text_config.foo", in file order

  int num_blocks() const { return num_hidden_layers + num_nextn_predict_layers; }
  bool has_vision() const { return vision.num_hidden_layers > 0; }
  bool is_kv_source(int layer) const;
  bool is_index_source(int layer) const;
  // The layer whose cache entries and index keys `layer` reads; -1 for ratio 0.
  int kv_source(int layer) const;
  // The layer whose chosen entries `layer` reads; -1 for ratio 0.
  int index_source(int layer) const;
  // Position in engram_layer_ids, or -1.
  int engram_index(int layer) const;
  // The number of experts and experts per token of a block (layer id, or num_hidden_layers + stage).
  int num_experts(int block) const { return block < num_hidden_layers ? n_routed_experts : dspark_n_routed_experts; }
  int top_k(int block) const { return block < num_hidden_layers ? num_experts_per_tok : dspark_num_experts_per_tok; }
  int engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }

  // Layer from which on a prompt may be cut to its last rows (replay.md 1): the only ratio-1 source, last of all
  // sources, with Engram before it and the draft targets on one side. -1 if there is none; `truncation_obstacle` says
  // why (empty when possible).
  int boundary_layer() const;
  std::string truncation_obstacle() const;

  // Global KV: one row of the compressed cache, one index row, and a run of positions (a multiple of 2) over all
  // sources.
  int64_t kv_row_bytes(KvFormat format = KvFormat::kFp4) const;
  int64_t index_row_bytes() const { return index_head_dim / 2 + index_head_dim / 32; }
  int64_t global_kv_bytes(int64_t num_positions, KvFormat format = KvFormat::kFp4) const;
  double global_kv_bytes_per_token(KvFormat format = KvFormat::kFp4) const;
  // Private state of a running sequence: window rings of `ring_slots` rows (window + backtracking), the open groups of
  // the ratio-2 sources, the draft windows. The n-gram context (a few ids) is not counted.
  int64_t window_row_bytes() const { return head_dim + head_dim / 32; }
  int64_t private_state_bytes(int ring_slots) const;
  int default_ring_slots() const { return sliding_window + dspark_block_size + 1; }
};

// Parses and checks the text of a config.json; kInvalid names the key, the value and what is allowed.
Result<ModelConfig> parse_config(std::string_view json_text);
// The same for DIR/config.json; errors carry the path.
Result<ModelConfig> load_config(const std::string& directory);
// config.json in the released layout; parse_config reads it back to the same configuration.
std::string config_json(const ModelConfig& config);

}  // namespace deepinfer
