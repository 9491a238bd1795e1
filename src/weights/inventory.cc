#include "weights/inventory.h"

#include "base/math.h"

namespace deepinfer::weights {
namespace {

// Columns of one scale group, and rows of one in the 32 x 32 tiles of kind fp8.
constexpr int64_t kGroup = 32;

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : c_(config) {}

  std::vector<WeightSpec> build() {
    const int64_t d = c_.hidden_size;
    matrix("embed.weight", Kind::kBF16, Part::kEmbedding, c_.vocab_size, d);
    for (int i = 0; i < c_.num_hidden_layers; ++i) layer(i);
    vector("norm.weight", Kind::kBF16, Part::kNorm, d);
    matrix("head.weight", Kind::kBF16, Part::kHead, c_.vocab_size, d);
    for (int s = 0; s < c_.num_nextn_predict_layers; ++s) draft_stage(s);
    if (c_.has_vision()) vision();
    return std::move(specs_);
  }

 private:
  void matrix(std::string name, Kind kind, Part part, int64_t rows, int64_t cols) {
    specs_.push_back({.name = std::move(name), .kind = kind, .part = part, .rank = 2, .rows = rows, .cols = cols});
  }
  void vector(std::string name, Kind kind, Part part, int64_t size) {
    specs_.push_back({.name = std::move(name), .kind = kind, .part = part, .rank = 1, .rows = 1, .cols = size});
  }

  // An expert's three matrices.
  void expert(const std::string& p, Kind kind, Part part) {
    const int64_t d = c_.hidden_size, width = c_.moe_intermediate_size;
    matrix(p + "w1.weight", kind, part, width, d);
    matrix(p + "w2.weight", kind, part, d, width);
    matrix(p + "w3.weight", kind, part, width, d);
  }

  void attention(const std::string& p, Part part) {
    const int64_t d = c_.hidden_size, q_width = int64_t{c_.num_attention_heads} * c_.head_dim;
    const int64_t o_width = int64_t{c_.o_groups} * c_.o_lora_rank;
    vector(p + "attn_sink", Kind::kF32, part, c_.num_attention_heads);
    matrix(p + "wq_a.weight", Kind::kFp8, part, c_.q_lora_rank, d);
    vector(p + "q_norm.weight", Kind::kBF16, part, c_.q_lora_rank);
    matrix(p + "wq_b.weight", Kind::kFp8, part, q_width, c_.q_lora_rank);
    matrix(p + "wkv.weight", Kind::kFp8, part, c_.head_dim, d);
    vector(p + "kv_norm.weight", Kind::kBF16, part, c_.head_dim);
    matrix(p + "wo_a.weight", Kind::kFp8, part, o_width, q_width / c_.o_groups);
    matrix(p + "wo_b.weight", Kind::kFp8, part, d, o_width);
  }

  // What backbone layers and draft stages have in common.
  void block(const std::string& p, int id) {
    const bool is_draft = id >= c_.num_hidden_layers;
    auto part = [&](Part backbone) { return is_draft ? Part::kDraft : backbone; };
    const int64_t d = c_.hidden_size, m = c_.hc_mult, num_experts = c_.num_experts(id);
    attention(p + "attn.", part(Part::kAttention));
    vector(p + "attn_norm.weight", Kind::kBF16, part(Part::kNorm), d);
    vector(p + "ffn_norm.weight", Kind::kBF16, part(Part::kNorm), d);
    for (const char* site : {"hc_attn", "hc_ffn"}) {
      matrix(fmt::format("{}{}_fn", p, site), Kind::kF32, part(Part::kStreams), (2 + m) * m, m * d);
      vector(fmt::format("{}{}_base", p, site), Kind::kF32, part(Part::kStreams), (2 + m) * m);
      vector(fmt::format("{}{}_scale", p, site), Kind::kF32, part(Part::kStreams), 3);
    }
    matrix(p + "ffn.gate.weight", Kind::kBF16, part(Part::kRouter), num_experts, d);
    vector(p + "ffn.gate.bias", Kind::kF32, part(Part::kRouter), num_experts);
    vector(p + "ffn.gate.bias_vl", Kind::kF32, part(Part::kRouter), num_experts);
    expert(p + "ffn.shared_experts.", Kind::kFp8, part(Part::kSharedExpert));
    for (int64_t e = 0; e < num_experts; ++e) {
      expert(fmt::format("{}ffn.experts.{}.", p, e), Kind::kFp4, is_draft ? Part::kDraftExperts : Part::kExperts);
    }
  }

  void layer(int i) {
    const std::string p = fmt::format("layers.{}.", i);
    const int64_t d = c_.hidden_size, m = c_.hc_mult;
    block(p, i);
    if (c_.is_kv_source(i)) {
      matrix(p + "attn.compressor.wkv.weight", Kind::kBF16, Part::kIndexer, c_.head_dim, d);
      if (c_.compress_ratios[static_cast<size_t>(i)] > 1) {
        matrix(p + "attn.compressor.wgate.weight", Kind::kBF16, Part::kIndexer, c_.head_dim, d);
      }
      vector(p + "attn.compressor.norm.weight", Kind::kBF16, Part::kIndexer, c_.head_dim);
      matrix(p + "attn.indexer.wk.weight", Kind::kBF16, Part::kIndexer, c_.index_head_dim, c_.head_dim);
      vector(p + "attn.indexer.k_norm.weight", Kind::kBF16, Part::kIndexer, c_.index_head_dim);
    }
    if (c_.is_index_source(i)) {
      matrix(p + "attn.indexer.wq_b.weight", Kind::kFp8, Part::kIndexer, int64_t{c_.index_n_heads} * c_.index_head_dim,
             c_.q_lora_rank);
      matrix(p + "attn.indexer.weights_proj.weight", Kind::kBF16, Part::kIndexer, c_.index_n_heads, d);
    }
    if (int e = c_.engram_index(i); e >= 0) {
      matrix(p + "engram.embed.weight", Kind::kFp8Row, Part::kEngramTable,
             c_.engram_num_embeddings[static_cast<size_t>(e)], c_.engram_head_dim);
      matrix(p + "engram.wkv.weight", Kind::kFp8, Part::kEngram, d * (m + 1),
             int64_t{c_.engram_columns()} * c_.engram_head_dim);
      matrix(p + "engram.q_weight", Kind::kBF16, Part::kEngram, m, d);
      matrix(p + "engram.k_weight", Kind::kBF16, Part::kEngram, m, d);
    }
  }

  void draft_stage(int s) {
    const std::string p = fmt::format("mtp.{}.", s);
    const int64_t d = c_.hidden_size, rank = c_.dspark_markov_rank;
    block(p, c_.num_hidden_layers + s);
    if (s == 0) {
      matrix(p + "main_proj.weight", Kind::kFp8, Part::kDraft, d,
             d * static_cast<int64_t>(c_.dspark_target_layer_ids.size()));
      vector(p + "main_norm.weight", Kind::kBF16, Part::kDraft, d);
    }
    if (s == c_.num_nextn_predict_layers - 1) {
      vector(p + "norm.weight", Kind::kBF16, Part::kDraft, d);
      matrix(p + "markov_head.embed.weight", Kind::kBF16, Part::kDraft, c_.vocab_size, rank);
      matrix(p + "markov_head.head.weight", Kind::kBF16, Part::kDraft, c_.vocab_size, rank);
      matrix(p + "confidence_head.proj.weight", Kind::kBF16, Part::kDraft, 1, d + rank);
    }
  }

  void vision() {
    const VisionConfig& v = c_.vision;
    const int64_t d = v.hidden_size, out = c_.hidden_size;
    auto weight = [&](const std::string& name, int64_t rows, int64_t cols) {
      matrix(name + ".weight", Kind::kBF16, Part::kVision, rows, cols);
    };
    auto linear = [&](const std::string& name, int64_t rows, int64_t cols) {
      weight(name, rows, cols);
      vector(name + ".bias", Kind::kBF16, Part::kVision, rows);
    };
    linear("vision.patch_embed.proj", d, int64_t{3} * v.patch_size * v.patch_size);
    for (int i = 0; i < v.num_hidden_layers; ++i) {
      const std::string p = fmt::format("vision.blocks.{}.", i);
      vector(p + "norm1.weight", Kind::kBF16, Part::kVision, d);
      vector(p + "norm2.weight", Kind::kBF16, Part::kVision, d);
      linear(p + "attn.wqkv", 3 * d, d);
      linear(p + "attn.wo", d, d);
      weight(p + "mlp.w1", int64_t{2} * v.intermediate_size, d);
      weight(p + "mlp.w2", d, v.intermediate_size);
    }
    vector("vision.norm.weight", Kind::kBF16, Part::kVision, d);
    linear("aligner.w1", out, d * v.downsample_ratio * v.downsample_ratio);
    linear("aligner.w2", out, out);
    for (const char* name : {"image_start", "image_end", "image_newline"})
      vector(name, Kind::kBF16, Part::kVision, out);
  }

  const ModelConfig& c_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"bf16", "f32", "fp8", "fp8row", "fp4"};
  return kNames[static_cast<int>(kind)];
}

const char* part_name(Part part) {
  constexpr const char* kNames[kNumParts] = {"embedding",
                                             "head",
                                             "attention",
                                             "indexer and compressor",
                                             "streams (mHC)",
                                             "router",
                                             "shared experts",
                                             "routed experts",
                                             "engram projections",
                                             "engram tables",
                                             "draft module",
                                             "draft experts",
                                             "norms",
                                             "vision"};
  return kNames[static_cast<int>(part)];
}

int64_t WeightSpec::scale_rows() const {
  if (!is_quantised()) return 0;
  return kind == Kind::kFp8 ? ceil_div(rows, kGroup) : rows;
}

int64_t WeightSpec::scale_cols() const {
  return is_quantised() ? ceil_div(cols, kGroup) : 0;
}

int64_t WeightSpec::code_row_bytes() const {
  switch (kind) {
    case Kind::kBF16:
      return cols * 2;
    case Kind::kF32:
      return cols * 4;
    case Kind::kFp4:
      return cols / 2;
    default:
      return cols;
  }
}

std::string WeightSpec::scale_name() const {
  constexpr std::string_view kSuffix = "weight";
  return name.substr(0, name.size() - kSuffix.size()) + "scale";
}

StoredType WeightSpec::stored_type() const {
  switch (kind) {
    case Kind::kBF16:
      return StoredType::kBF16;
    case Kind::kF32:
      return StoredType::kF32;
    case Kind::kFp4:
      return StoredType::kI8;
    default:
      return StoredType::kE4M3;
  }
}

std::vector<int64_t> WeightSpec::stored_shape() const {
  if (rank == 1) return {cols};
  return {rows, kind == Kind::kFp4 ? cols / 2 : cols};
}

std::vector<WeightSpec> inventory(const ModelConfig& config) {
  return Builder(config).build();
}

InventoryTotals totals(const std::vector<WeightSpec>& specs) {
  InventoryTotals t;
  for (const WeightSpec& s : specs) {
    t.num_tensors += s.is_quantised() ? 2 : 1;
    t.num_bytes += s.bytes();
  }
  return t;
}

}  // namespace deepinfer::weights
