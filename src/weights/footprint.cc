#include "weights/footprint.h"

#include <algorithm>

namespace deepinfer::weights {
namespace {

int64_t at(const PartBytes& bytes, Part part) {
  return bytes[static_cast<size_t>(part)];
}

// Values of one routed expert, and its bytes with scales.
int64_t expert_values(const ModelConfig& c) {
  return int64_t{3} * c.hidden_size * c.moe_intermediate_size;
}
int64_t expert_bytes(const ModelConfig& c) {
  return expert_values(c) / 2 + expert_values(c) / 32;
}

// Bytes of the backbone that every token reads: all but tables, experts, the draft, and the embedding (one row).
int64_t dense_backbone_bytes(const ModelConfig& c) {
  const PartBytes b = bytes_by_part(inventory(c));
  return at(b, Part::kHead) + at(b, Part::kAttention) + at(b, Part::kIndexer) + at(b, Part::kStreams) +
         at(b, Part::kRouter) + at(b, Part::kSharedExpert) + at(b, Part::kEngram) + at(b, Part::kNorm) +
         int64_t{2} * c.hidden_size;
}

}  // namespace

PartBytes bytes_by_part(const std::vector<WeightSpec>& specs) {
  PartBytes bytes{};
  for (const WeightSpec& s : specs) bytes[static_cast<size_t>(s.part)] += s.bytes();
  return bytes;
}

Footprint footprint(const ModelConfig& config) {
  const PartBytes b = bytes_by_part(inventory(config));
  Footprint f;
  for (int i = 0; i < kNumParts; ++i) {
    const Part part = static_cast<Part>(i);
    int64_t& sum = part == Part::kExperts || part == Part::kDraftExperts ? f.experts
                   : part == Part::kEngramTable                          ? f.engram_tables
                   : part == Part::kVision                               ? f.vision
                                                                         : f.dense;
    sum += at(b, part);
  }
  return f;
}

DecodeBytes decode_bytes(const ModelConfig& c, int64_t context) {
  DecodeBytes d;
  d.dense = dense_backbone_bytes(c);
  d.experts = int64_t{c.num_hidden_layers} * c.num_experts_per_tok * expert_bytes(c);
  d.engram = static_cast<int64_t>(c.engram_layer_ids.size()) * c.engram_columns() *
             (c.engram_head_dim + c.engram_head_dim / 32);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    d.cache += std::min<int64_t>(context, c.sliding_window) * c.window_row_bytes();
    const int ratio = c.compress_ratios[static_cast<size_t>(i)];
    if (ratio == 0) continue;
    const int64_t visible = context / ratio;
    d.cache += std::min<int64_t>(visible, c.index_topk) * c.kv_row_bytes();
    if (!c.is_index_source(i)) continue;
    const bool is_restricted = c.candidate_source_layer_id >= 0 && i > c.candidate_source_layer_id;
    const int64_t candidates = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
    d.cache += (is_restricted ? std::min(visible, candidates) : visible) * c.index_row_bytes();
  }
  return d;
}

double decode_flops(const ModelConfig& c) {
  double values = 0;
  for (const WeightSpec& s : inventory(c)) {
    const bool is_product = s.rank == 2 && s.part != Part::kEngramTable && s.part != Part::kEmbedding &&
                            s.part != Part::kExperts && s.part != Part::kDraft && s.part != Part::kDraftExperts &&
                            s.part != Part::kVision;
    if (is_product) values += static_cast<double>(s.rows) * static_cast<double>(s.cols);
  }
  values += static_cast<double>(c.num_hidden_layers) * c.num_experts_per_tok * static_cast<double>(expert_values(c));
  return 2 * values;
}

}  // namespace deepinfer::weights
