// Parsing and checking of config.json. The first problem found is the one reported.

#include "weights/config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "weights/engram_hash.h"

namespace deepinfer {
namespace {

constexpr int64_t kAnyInt = std::numeric_limits<int32_t>::max();
// Larger values than any model of this family needs; they keep hostile files from asking for absurd amounts of work.
constexpr int kMaxWidth = 1 << 20, kMaxLayers = 512, kMaxExperts = 4096, kMaxVocabulary = 1 << 24;

struct Problem {
  bool found = false;
  std::string text;
  template <typename... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    if (found) return;
    found = true;
    text = fmt::format(format, std::forward<Args>(args)...);
  }
};

bool same_value(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

std::string shortened(const json::value& v) {
  std::string s = json::dump(v);
  return s.size() > 80 ? s.substr(0, 77) + "..." : s;
}

// One object of the file: typed access to its keys, each access marks the key as known.
class Section {
 public:
  Section(const json::object& object, std::string prefix, Problem& problem)
      : object_(object), prefix_(std::move(prefix)), problem_(problem) {}

  const json::value* get(std::string_view key) {
    known_.emplace(key);
    return object_.if_contains(key);
  }
  const json::value* require(std::string_view key) {
    const json::value* v = get(key);
    if (v == nullptr) problem_.report("config key {}{} is missing", prefix_, key);
    return v;
  }

  // A whole number in [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high) {
    const json::value* v = require(key);
    if (v == nullptr) return low;
    if (!v->is_int64() || v->get_int64() < low || v->get_int64() > high) {
      problem_.report("config key {}{} is {}, allowed are whole numbers {}..{}", prefix_, key, shortened(*v), low,
                      high);
      return low;
    }
    return v->get_int64();
  }
  int small(std::string_view key, int64_t low, int64_t high) { return static_cast<int>(integer(key, low, high)); }
  // The same, divisible by `quantum`.
  int multiple(std::string_view key, int quantum, int64_t high) {
    int value = small(key, quantum, high);
    if (value % quantum != 0) {
      problem_.report("config key {}{} is {}, allowed are multiples of {}", prefix_, key, value, quantum);
    }
    return value;
  }
  double number(std::string_view key, double low, double high) {
    const json::value* v = require(key);
    if (v == nullptr) return low;
    double value = v->is_number() ? v->to_number<double>() : std::nan("");
    if (!(value >= low && value <= high)) {
      problem_.report("config key {}{} is {}, allowed are numbers {}..{}", prefix_, key, shortened(*v), low, high);
      return low;
    }
    return value + 0.0;  // -0 becomes 0
  }
  // Whole numbers in [low, high].
  std::vector<int64_t> list(std::string_view key, int64_t low, int64_t high) {
    const json::value* v = require(key);
    if (v == nullptr) return {};
    if (!v->is_array()) {
      problem_.report("config key {}{} is {}, allowed is a list of whole numbers", prefix_, key, shortened(*v));
      return {};
    }
    std::vector<int64_t> out;
    for (const json::value& item : v->get_array()) {
      if (!item.is_int64() || item.get_int64() < low || item.get_int64() > high) {
        problem_.report("config key {}{} contains {}, allowed are whole numbers {}..{}", prefix_, key, shortened(item),
                        low, high);
        return {};
      }
      out.push_back(item.get_int64());
    }
    return out;
  }
  // Layer ids below num_layers, strictly ascending.
  std::vector<int> layers(std::string_view key, int num_layers) {
    auto wide = list(key, 0, num_layers - 1);
    if (std::adjacent_find(wide.begin(), wide.end(), std::greater_equal<>()) != wide.end()) {
      problem_.report("config key {}{} is [{}], allowed are ascending layer ids", prefix_, key, fmt::join(wide, ", "));
    }
    return {wide.begin(), wide.end()};
  }
  void fixed(std::string_view key, const json::value& allowed) {
    if (require(key) != nullptr) fixed_if_present(key, allowed);
  }
  void fixed_if_present(std::string_view key, const json::value& allowed) {
    const json::value* v = get(key);
    if (v != nullptr && !same_value(*v, allowed)) {
      problem_.report("config key {}{} is {}, allowed is {}", prefix_, key, shortened(*v), json::dump(allowed));
    }
  }
  // Keys without influence on the model.
  void ignore(std::initializer_list<std::string_view> keys) {
    for (auto key : keys) known_.emplace(key);
  }
  const json::object* child(std::string_view key, bool is_required) {
    const json::value* v = is_required ? require(key) : get(key);
    if (v == nullptr || (!is_required && v->is_null())) return nullptr;
    if (!v->is_object()) problem_.report("config key {}{} is {}, allowed is an object", prefix_, key, shortened(*v));
    return v->if_object();
  }
  void collect_unknown(std::vector<std::string>& out) const {
    for (const auto& entry : object_) {
      if (!known_.contains(std::string_view(entry.key()))) out.push_back(prefix_ + std::string(entry.key()));
    }
  }

 private:
  const json::object& object_;
  std::string prefix_;
  Problem& problem_;
  std::set<std::string, std::less<>> known_;
};

void read_rope_scaling(Section& text, ModelConfig& c, Problem& problem) {
  const json::value* v = text.require("rope_scaling");
  c.rope_scaling.reset();
  if (v == nullptr || v->is_null()) return;
  if (!v->is_object()) {
    return problem.report("config key text_config.rope_scaling is {}, allowed are null or an object", shortened(*v));
  }
  Section s(v->get_object(), "text_config.rope_scaling.", problem);
  const char* type_key = s.get("rope_type") == nullptr ? "type" : "rope_type";
  s.fixed(type_key, "yarn");
  s.fixed_if_present("type", "yarn");
  RopeScaling r;
  r.factor = s.number("factor", 1, 1e6);
  r.beta_fast = s.number("beta_fast", 1e-3, 1e6);
  r.beta_slow = s.number("beta_slow", 1e-3, r.beta_fast);
  r.original_max_position_embeddings = s.integer("original_max_position_embeddings", 1, kAnyInt);
  // The amplitude stays 1 here: whatever asks for another one is refused.
  for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"}) s.fixed_if_present(key, 1);
  s.collect_unknown(c.unknown_keys);
  c.rope_scaling = r;
}

void read_attention(Section& text, ModelConfig& c, Problem& problem) {
  c.num_attention_heads = text.small("num_attention_heads", 1, 4096);
  text.fixed("num_key_value_heads", 1);
  c.head_dim = text.multiple("head_dim", 32, 4096);
  c.qk_rope_head_dim = text.small("qk_rope_head_dim", 2, c.head_dim);
  if (c.qk_rope_head_dim % 2 != 0) {
    problem.report("config key text_config.qk_rope_head_dim is {}, allowed are even numbers", c.qk_rope_head_dim);
  }
  c.q_lora_rank = text.multiple("q_lora_rank", 32, kMaxWidth);
  c.o_groups = text.small("o_groups", 1, c.num_attention_heads);
  c.o_lora_rank = text.small("o_lora_rank", 1, kMaxWidth);
  if (c.num_attention_heads % std::max(c.o_groups, 1) != 0) {
    problem.report("config key text_config.o_groups is {}, allowed are divisors of num_attention_heads {}", c.o_groups,
                   c.num_attention_heads);
  }
  if (int64_t{c.o_groups} * c.o_lora_rank % 32 != 0 || int64_t{c.o_groups} * c.o_lora_rank > kMaxWidth) {
    problem.report(
        "config keys text_config.o_groups x o_lora_rank are {} x {}, allowed are products divisible by 32 up to {}",
        c.o_groups, c.o_lora_rank, kMaxWidth);
  }
  c.sliding_window = text.small("sliding_window", 1, 1024);
  c.rope_theta = text.number("rope_theta", 1, 1e12);
  text.fixed("attention_bias", false);
  text.fixed("attention_dropout", 0.0);
  read_rope_scaling(text, c, problem);
}

void read_compression(Section& text, ModelConfig& c, Problem& problem) {
  auto ratios = text.list("compress_ratios", 0, 2);
  c.compress_ratios.assign(ratios.begin(), ratios.end());
  if (static_cast<int>(ratios.size()) != c.num_blocks()) {
    return problem.report(
        "config key text_config.compress_ratios has {} entries, allowed are {} layers + {} draft stages", ratios.size(),
        c.num_hidden_layers, c.num_nextn_predict_layers);
  }
  for (int i = c.num_hidden_layers; i < c.num_blocks(); ++i) {
    if (ratios[static_cast<size_t>(i)] == 0) continue;
    problem.report("config key text_config.compress_ratios gives draft stage {} the ratio {}, allowed is 0",
                   i - c.num_hidden_layers, ratios[static_cast<size_t>(i)]);
  }
  c.kv_source_layer_ids = text.layers("kv_source_layer_ids", c.num_hidden_layers);
  c.index_source_layer_ids = text.layers("index_source_layer_ids", c.num_hidden_layers);
  if (const json::value* v = text.get("index_k_source_layer_ids"); v != nullptr) {
    text.fixed_if_present("index_k_source_layer_ids",
                          json::array(c.kv_source_layer_ids.begin(), c.kv_source_layer_ids.end()));
  }
  c.candidate_source_layer_id =
      std::max(-1, text.small("candidate_source_layer_id", -kAnyInt, c.num_hidden_layers - 1));
  const bool has_sources = !c.index_source_layer_ids.empty() || !c.kv_source_layer_ids.empty();
  if (has_sources) {
    c.compress_rope_theta = text.number("compress_rope_theta", 1, 1e12);
    c.index_n_heads = text.small("index_n_heads", 1, 4096);
    c.index_head_dim = text.multiple("index_head_dim", 32, 4096);
    c.index_topk = text.small("index_topk", 1, kMaxVocabulary);
    if (c.qk_rope_head_dim > c.index_head_dim) {
      problem.report("config key text_config.qk_rope_head_dim is {}, allowed is at most index_head_dim {}",
                     c.qk_rope_head_dim, c.index_head_dim);
    }
  } else {
    text.ignore({"compress_rope_theta", "index_n_heads", "index_head_dim", "index_topk"});
  }
  if (c.candidate_source_layer_id >= 0) {
    c.candidate_topk_blocks = text.small("candidate_topk_blocks", 1, kMaxVocabulary);
    c.candidate_block_size = text.small("candidate_block_size", 1, 4096);
  } else {
    text.ignore({"candidate_topk_blocks", "candidate_block_size"});
  }
}

// Who reads from whom: every reader finds a source with its own ratio.
void check_sources(const ModelConfig& c, Problem& problem) {
  auto ratio = [&](int layer) { return c.compress_ratios[static_cast<size_t>(layer)]; };
  for (int s : c.kv_source_layer_ids) {
    if (!c.is_index_source(s)) {
      problem.report("config key text_config.index_source_layer_ids is [{}], it must contain KV source {}",
                     fmt::join(c.index_source_layer_ids, ", "), s);
    }
  }
  for (int s : c.index_source_layer_ids) {
    if (ratio(s) == 0)
      problem.report("config key text_config.compress_ratios gives source layer {} the ratio 0, allowed are 1 and 2",
                     s);
  }
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    if (ratio(i) == 0) continue;
    const int kv = c.kv_source(i), index = c.index_source(i);
    if (kv < 0 || index < 0) {
      problem.report(
          "config key text_config.compress_ratios gives layer {} the ratio {}, but no source in kv_source_layer_ids "
          "[{}] "
          "is at or before it",
          i, ratio(i), fmt::join(c.kv_source_layer_ids, ", "));
    } else if (ratio(kv) != ratio(i) || ratio(index) != ratio(i)) {
      problem.report(
          "config key text_config.compress_ratios gives layer {} the ratio {}, its KV source {} has {} and its index "
          "source {} has {}; allowed are equal ones",
          i, ratio(i), kv, ratio(kv), index, ratio(index));
    }
  }
  const int candidate = c.candidate_source_layer_id;
  if (candidate < 0 || problem.found) return;
  if (!c.is_index_source(candidate)) {
    return problem.report("config key text_config.candidate_source_layer_id is {}, allowed are the index sources [{}]",
                          candidate, fmt::join(c.index_source_layer_ids, ", "));
  }
  for (int s : c.index_source_layer_ids) {
    if (s <= candidate || (ratio(s) == ratio(candidate) && c.kv_source(s) == c.kv_source(candidate))) continue;
    problem.report(
        "config key text_config.candidate_source_layer_id is {}, but index source {} after it reads KV source {} with "
        "ratio "
        "{}, not {} with ratio {}",
        candidate, s, c.kv_source(s), ratio(s), c.kv_source(candidate), ratio(candidate));
  }
}

void read_experts(Section& text, ModelConfig& c) {
  text.fixed("hidden_act", "silu");
  text.fixed("n_shared_experts", 1);
  text.fixed("scoring_func", "sqrtsoftplus");
  text.fixed("topk_method", "noaux_tc");
  text.fixed("norm_topk_prob", true);
  c.swiglu_limit = text.number("swiglu_limit", 1e-6, 1e6);
  c.moe_intermediate_size = text.multiple("moe_intermediate_size", 32, kMaxWidth);
  c.n_routed_experts = text.small("n_routed_experts", 1, kMaxExperts);
  c.num_experts_per_tok = text.small("num_experts_per_tok", 1, std::min(c.n_routed_experts, 64));
  c.routed_scaling_factor = text.number("routed_scaling_factor", 1e-6, 1e6);
  if (text.get("gate_temp") != nullptr) c.gate_temp = text.number("gate_temp", 1e-6, 1e6);
  c.hc_mult = text.small("hc_mult", 1, 8);
  c.hc_sinkhorn_iters = text.small("hc_sinkhorn_iters", 1, 1000);
  c.hc_eps = text.number("hc_eps", 0, 1);
}

void read_engram(Section& text, ModelConfig& c, Problem& problem) {
  c.engram_layer_ids = text.layers("engram_layer_ids", c.num_hidden_layers);
  if (c.engram_layer_ids.empty()) {
    text.ignore({"engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads",
                 "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size"});
    return;
  }
  c.engram_max_ngram_size = text.small("engram_max_ngram_size", 2, 4);
  c.engram_vocab_size = text.integer("engram_vocab_size", 2, kAnyInt);
  c.engram_n_heads = text.small("engram_n_heads", 1, 64);
  c.engram_head_dim = text.multiple("engram_head_dim", 32, 4096);
  c.engram_pad_token_id = text.small("engram_pad_token_id", 0, c.vocab_size - 1);
  c.engram_compressed_vocab_size = text.small("engram_compressed_vocab_size", 1, c.vocab_size);
  c.engram_num_embeddings = text.list("engram_num_embeddings", 1, std::numeric_limits<int64_t>::max());
  if (problem.found) return;
  auto rows = engram_table_rows(static_cast<int>(c.engram_layer_ids.size()), c.engram_max_ngram_size, c.engram_n_heads,
                                c.engram_vocab_size);
  if (c.engram_num_embeddings != rows) {
    problem.report(
        "config key text_config.engram_num_embeddings is [{}], allowed are the prime sums [{}] of engram_vocab_size {}",
        fmt::join(c.engram_num_embeddings, ", "), fmt::join(rows, ", "), c.engram_vocab_size);
  }
}

void read_draft(Section& text, ModelConfig& c, Problem& problem) {
  if (c.num_nextn_predict_layers == 0) {
    text.ignore({"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank",
                 "dspark_n_routed_experts", "dspark_num_experts_per_tok", "dspark_target_attn_input"});
    c.dspark_block_size = 0;
    return;
  }
  c.dspark_block_size = text.small("dspark_block_size", 1, 32);
  c.dspark_noise_token_id = text.small("dspark_noise_token_id", 0, c.vocab_size - 1);
  c.dspark_target_layer_ids = text.layers("dspark_target_layer_ids", c.num_hidden_layers);
  if (c.dspark_target_layer_ids.empty()) {
    problem.report("config key text_config.dspark_target_layer_ids is [], allowed are 1..{} layer ids",
                   c.num_hidden_layers);
  }
  c.dspark_markov_rank = text.small("dspark_markov_rank", 1, kMaxWidth);
  c.dspark_n_routed_experts = text.small("dspark_n_routed_experts", 1, kMaxExperts);
  c.dspark_num_experts_per_tok = text.small("dspark_num_experts_per_tok", 1, std::min(c.dspark_n_routed_experts, 64));
  text.fixed_if_present("dspark_target_attn_input", true);
}

void read_text(Section& text, ModelConfig& c, Problem& problem) {
  text.fixed("model_type", "deepseek_v41_text");
  c.vocab_size = text.small("vocab_size", 1, kMaxVocabulary);
  c.hidden_size = text.multiple("hidden_size", 32, kMaxWidth);
  c.num_hidden_layers = text.small("num_hidden_layers", 1, kMaxLayers);
  c.num_nextn_predict_layers = text.small("num_nextn_predict_layers", 0, 16);
  c.max_position_embeddings = text.integer("max_position_embeddings", 1, kAnyInt);
  c.rms_norm_eps = text.number("rms_norm_eps", 0, 1);
  text.fixed("tie_word_embeddings", false);
  text.fixed_if_present("dtype", "bfloat16");
  text.fixed_if_present("torch_dtype", "bfloat16");
  text.fixed_if_present("hc_shifted", true);
  text.fixed_if_present("use_fp4_sparse_kv", true);
  text.fixed_if_present("yoco_swa_share_hidden", false);
  text.fixed_if_present("bos_token_id", c.bos_token_id);
  text.fixed_if_present("eos_token_id", c.eos_token_id);
  text.fixed_if_present("pad_token_id", c.pad_token_id);
  text.ignore({"initializer_range", "use_cache"});
  if (problem.found) return;
  read_attention(text, c, problem);
  read_compression(text, c, problem);
  if (!problem.found) check_sources(c, problem);
  read_experts(text, c);
  read_engram(text, c, problem);
  read_draft(text, c, problem);
  text.collect_unknown(c.unknown_keys);
}

void read_vision(Section& s, ModelConfig& c, Problem& problem) {
  VisionConfig& v = c.vision;
  v.num_hidden_layers = s.small("num_hidden_layers", 0, kMaxLayers);
  s.fixed_if_present("model_type", "deepseek_v41_vision");
  s.ignore({"hidden_size", "num_attention_heads", "intermediate_size", "patch_size", "downsample_ratio", "rope_theta",
            "max_image_tokens", "min_pixels", "max_wh_ratio"});
  if (v.num_hidden_layers > 0) {
    v.hidden_size = s.small("hidden_size", 1, kMaxWidth);
    v.num_attention_heads = s.small("num_attention_heads", 1, v.hidden_size);
    v.intermediate_size = s.small("intermediate_size", 1, kMaxWidth);
    v.patch_size = s.small("patch_size", 1, 1024);
    v.downsample_ratio = s.small("downsample_ratio", 1, 64);
    v.max_image_tokens = s.small("max_image_tokens", 1, kMaxWidth);
    v.min_pixels = s.integer("min_pixels", 1, kAnyInt);
    v.rope_theta = s.number("rope_theta", 1, 1e12);
    if (const json::value* ratio = s.get("max_wh_ratio"); ratio != nullptr && !ratio->is_null()) {
      v.max_wh_ratio = s.number("max_wh_ratio", 1, 1e6);
    }
    // The rotation works on quarters of a head: two axes, two channels a pair.
    if (v.hidden_size % (4 * v.num_attention_heads) != 0) {
      problem.report("config key vision_config.hidden_size is {}, allowed are multiples of 4 x num_attention_heads {}",
                     v.hidden_size, v.num_attention_heads);
    }
  }
  s.collect_unknown(c.unknown_keys);
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view json_text) {
  DI_TRY(json::value root, json::parse(json_text));
  if (!root.is_object()) return fail(Code::kInvalid, "the configuration is not a JSON object");
  ModelConfig c;
  Problem problem;
  Section top(root.get_object(), "", problem);
  top.fixed("architectures", json::array{"DeepseekV41ForCausalLM"});
  top.fixed("model_type", "deepseek_v41");
  top.fixed("dtype", "bfloat16");
  top.fixed_if_present("torch_dtype", "bfloat16");
  top.fixed_if_present("tie_word_embeddings", false);
  top.ignore({"transformers_version", "tokenizer_compatibility", "auto_map"});
  if (const json::object* q = top.child("quantization_config", true)) {
    Section s(*q, "quantization_config.", problem);
    s.fixed("quant_method", "fp8");
    s.fixed("activation_scheme", "dynamic");
    s.fixed("weight_block_size", json::array{32, 32});
    s.fixed("scale_fmt", "ue8m0");
    s.fixed("expert_dtype", "fp4");
    s.fixed_if_present("fmt", "e4m3");
    s.collect_unknown(c.unknown_keys);
  }
  c.bos_token_id = top.small("bos_token_id", 0, kMaxVocabulary);
  c.eos_token_id = top.small("eos_token_id", 0, kMaxVocabulary);
  c.pad_token_id = top.small("pad_token_id", 0, kMaxVocabulary);
  c.image_token_id = top.small("image_token_id", 0, kMaxVocabulary);
  if (const json::object* t = top.child("text_config", true); t != nullptr && !problem.found) {
    Section text(*t, "text_config.", problem);
    read_text(text, c, problem);
  }
  for (int id : {c.bos_token_id, c.eos_token_id, c.pad_token_id, c.image_token_id}) {
    if (id >= c.vocab_size)
      problem.report("a token id of the configuration is {}, allowed are 0..{}", id, c.vocab_size - 1);
  }
  if (const json::object* v = top.child("vision_config", false)) {
    Section vision(*v, "vision_config.", problem);
    read_vision(vision, c, problem);
  }
  top.collect_unknown(c.unknown_keys);
  if (problem.found) return tl::unexpected(Error{Code::kInvalid, problem.text});
  return c;
}

Result<ModelConfig> load_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  DI_TRY(std::string text, read_file(path));
  auto config = parse_config(text);
  if (!config) return fail(config.error().code, "{}: {}", path, config.error().message);
  return config;
}

}  // namespace deepinfer
