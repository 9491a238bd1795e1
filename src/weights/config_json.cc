// Writes a configuration as the released config.json nests it.

#include <string>

#include "weights/config.h"

namespace deepinfer {
namespace {

class Writer {
 public:
  template <typename T>
  void add(const char* key, const T& value) {
    text_ += fmt::format("{}{}\"{}\": {}", is_first_ ? "\n" : ",\n", indent_, key, value);
    is_first_ = false;
  }
  void add_text(const char* key, const char* value) { add(key, fmt::format("\"{}\"", value)); }
  void add_bool(const char* key, bool value) { add(key, value ? "true" : "false"); }
  template <typename T>
  void add_list(const char* key, const std::vector<T>& values) {
    add(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void open(const char* key) {
    add(key, "{");
    indent_ += "  ";
    is_first_ = true;
  }
  void close() {
    indent_.resize(indent_.size() - 2);
    text_ += "\n" + indent_ + "}";
    is_first_ = false;
  }
  std::string finish() { return text_ + "\n}\n"; }

 private:
  std::string text_ = "{", indent_ = "  ";
  bool is_first_ = true;
};

void write_compression(Writer& w, const ModelConfig& c) {
  w.add_list("compress_ratios", c.compress_ratios);
  w.add("compress_rope_theta", c.compress_rope_theta);
  w.add_list("kv_source_layer_ids", c.kv_source_layer_ids);
  w.add_list("index_source_layer_ids", c.index_source_layer_ids);
  w.add("index_n_heads", c.index_n_heads);
  w.add("index_head_dim", c.index_head_dim);
  w.add("index_topk", c.index_topk);
  w.add("candidate_source_layer_id", c.candidate_source_layer_id);
  w.add("candidate_topk_blocks", c.candidate_topk_blocks);
  w.add("candidate_block_size", c.candidate_block_size);
}

void write_experts(Writer& w, const ModelConfig& c) {
  w.add_text("hidden_act", "silu");
  w.add("swiglu_limit", c.swiglu_limit);
  w.add("moe_intermediate_size", c.moe_intermediate_size);
  w.add("n_routed_experts", c.n_routed_experts);
  w.add("n_shared_experts", 1);
  w.add("num_experts_per_tok", c.num_experts_per_tok);
  w.add_text("scoring_func", "sqrtsoftplus");
  w.add_text("topk_method", "noaux_tc");
  w.add_bool("norm_topk_prob", true);
  w.add("routed_scaling_factor", c.routed_scaling_factor);
  if (c.gate_temp != 1) w.add("gate_temp", c.gate_temp);
  w.add("hc_mult", c.hc_mult);
  w.add("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  w.add("hc_eps", c.hc_eps);
}

void write_engram_and_draft(Writer& w, const ModelConfig& c) {
  w.add_list("engram_layer_ids", c.engram_layer_ids);
  if (!c.engram_layer_ids.empty()) {
    w.add_list("engram_num_embeddings", c.engram_num_embeddings);
    w.add("engram_max_ngram_size", c.engram_max_ngram_size);
    w.add("engram_vocab_size", c.engram_vocab_size);
    w.add("engram_n_heads", c.engram_n_heads);
    w.add("engram_head_dim", c.engram_head_dim);
    w.add("engram_pad_token_id", c.engram_pad_token_id);
    w.add("engram_compressed_vocab_size", c.engram_compressed_vocab_size);
  }
  w.add("num_nextn_predict_layers", c.num_nextn_predict_layers);
  if (c.num_nextn_predict_layers > 0) {
    w.add("dspark_block_size", c.dspark_block_size);
    w.add("dspark_noise_token_id", c.dspark_noise_token_id);
    w.add_list("dspark_target_layer_ids", c.dspark_target_layer_ids);
    w.add("dspark_markov_rank", c.dspark_markov_rank);
    w.add("dspark_n_routed_experts", c.dspark_n_routed_experts);
    w.add("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok);
  }
}

void write_text(Writer& w, const ModelConfig& c) {
  w.open("text_config");
  w.add_text("model_type", "deepseek_v41_text");
  w.add("vocab_size", c.vocab_size);
  w.add("hidden_size", c.hidden_size);
  w.add("num_hidden_layers", c.num_hidden_layers);
  w.add("max_position_embeddings", c.max_position_embeddings);
  w.add("rms_norm_eps", c.rms_norm_eps);
  w.add("num_attention_heads", c.num_attention_heads);
  w.add("num_key_value_heads", 1);
  w.add("head_dim", c.head_dim);
  w.add("qk_rope_head_dim", c.qk_rope_head_dim);
  w.add("q_lora_rank", c.q_lora_rank);
  w.add("o_lora_rank", c.o_lora_rank);
  w.add("o_groups", c.o_groups);
  w.add("sliding_window", c.sliding_window);
  w.add("rope_theta", c.rope_theta);
  if (c.rope_scaling) {
    w.open("rope_scaling");
    w.add_text("rope_type", "yarn");
    w.add("factor", c.rope_scaling->factor);
    w.add("beta_fast", c.rope_scaling->beta_fast);
    w.add("beta_slow", c.rope_scaling->beta_slow);
    w.add("original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings);
    w.close();
  } else {
    w.add("rope_scaling", "null");
  }
  write_compression(w, c);
  write_experts(w, c);
  write_engram_and_draft(w, c);
  w.add_bool("attention_bias", false);
  w.add("attention_dropout", 0);
  w.add_bool("tie_word_embeddings", false);
  w.close();
}

void write_vision(Writer& w, const VisionConfig& v) {
  w.open("vision_config");
  w.add_text("model_type", "deepseek_v41_vision");
  w.add("num_hidden_layers", v.num_hidden_layers);
  w.add("hidden_size", v.hidden_size);
  w.add("num_attention_heads", v.num_attention_heads);
  w.add("intermediate_size", v.intermediate_size);
  w.add("patch_size", v.patch_size);
  w.add("rope_theta", v.rope_theta);
  w.add("downsample_ratio", v.downsample_ratio);
  w.add("max_image_tokens", v.max_image_tokens);
  w.add("min_pixels", v.min_pixels);
  w.add("max_wh_ratio", v.max_wh_ratio ? fmt::format("{}", *v.max_wh_ratio) : "null");
  w.close();
}

}  // namespace

std::string config_json(const ModelConfig& c) {
  Writer w;
  w.add("architectures", "[\"DeepseekV41ForCausalLM\"]");
  w.add_text("model_type", "deepseek_v41");
  w.add_text("dtype", "bfloat16");
  w.add("bos_token_id", c.bos_token_id);
  w.add("eos_token_id", c.eos_token_id);
  w.add("pad_token_id", c.pad_token_id);
  w.add("image_token_id", c.image_token_id);
  w.open("quantization_config");
  w.add_text("quant_method", "fp8");
  w.add_text("activation_scheme", "dynamic");
  w.add("weight_block_size", "[32, 32]");
  w.add_text("scale_fmt", "ue8m0");
  w.add_text("expert_dtype", "fp4");
  w.close();
  write_text(w, c);
  write_vision(w, c.vision);
  return w.finish();
}

}  // namespace deepinfer
