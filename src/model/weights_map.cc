#include "model/weights_map.h"

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::model {
namespace {

using kernels::Weight;
using parallel::Range;
using weights::Checkpoint;
using weights::WeightView;

Weight::Kind kind_of(weights::Kind kind) {
  switch (kind) {
    case weights::Kind::kBF16:
      return Weight::Kind::kBF16;
    case weights::Kind::kF32:
      return Weight::Kind::kF32;
    case weights::Kind::kFp8:
      return Weight::Kind::kFp8;
    case weights::Kind::kFp8Row:
      return Weight::Kind::kFp8Row;
    case weights::Kind::kFp4:
      return Weight::Kind::kFp4;
  }
  return Weight::Kind::kNone;
}

// Looks names up and keeps the first error, so that the lists below read as lists.
class Mapper {
 public:
  Mapper(const Checkpoint& checkpoint, const parallel::Shards& shards, WeightPlace* place)
      : checkpoint_(checkpoint), config_(checkpoint.config()), shards_(shards), place_(place) {}

  const Result<void>& status() const { return status_; }

  Weight matrix(const std::string& name) { return to_weight(name, checkpoint_.map(name), false); }

  // Empty without a look at the file if the rank has no rows.
  Weight rows(const std::string& name, Range range, bool is_table = false) {
    const weights::WeightSpec* spec = checkpoint_.find(name);
    if (range.empty() || spec == nullptr) return spec == nullptr ? matrix(name) : Weight{};
    return to_weight(name, checkpoint_.map(name, {range.begin, range.end, 0, spec->cols}), is_table);
  }

  const bf16* norm(const std::string& name) { return static_cast<const bf16*>(matrix(name + ".weight").codes); }
  const float* floats(const std::string& name) { return static_cast<const float*>(matrix(name).codes); }

  BlockWeights block(const std::string& p, int layer) {
    const ModelConfig& c = config_;
    BlockWeights w;
    w.attn_site = {floats(p + "hc_attn_fn"), floats(p + "hc_attn_base"), floats(p + "hc_attn_scale")};
    w.ffn_site = {floats(p + "hc_ffn_fn"), floats(p + "hc_ffn_base"), floats(p + "hc_ffn_scale")};
    w.attn_norm = norm(p + "attn_norm");
    w.ffn_norm = norm(p + "ffn_norm");
    attention(p + "attn.", w);
    if (c.is_kv_source(layer)) compressor(p + "attn.", c.compress_ratios[static_cast<size_t>(layer)], w);
    if (c.is_index_source(layer)) {
      w.index_q = matrix(p + "attn.indexer.wq_b.weight");
      w.index_heads = matrix(p + "attn.indexer.weights_proj.weight");
    }
    experts(p + "ffn.", layer < c.num_hidden_layers ? shards_.experts : shards_.draft_experts, w);
    if (int index = c.engram_index(layer); index >= 0) {
      w.engram_table = rows(p + "engram.embed.weight", shards_.engram_table[static_cast<size_t>(index)], true);
      w.engram_wkv = rows(p + "engram.wkv.weight", shards_.engram_rows_out);
      w.engram_q = static_cast<const bf16*>(matrix(p + "engram.q_weight").codes);
      w.engram_k = static_cast<const bf16*>(matrix(p + "engram.k_weight").codes);
    }
    return w;
  }

  DraftWeights draft() {
    const std::string last = fmt::format("mtp.{}.", config_.num_nextn_predict_layers - 1);
    DraftWeights w;
    w.main_proj = rows("mtp.0.main_proj.weight", shards_.main_proj);
    w.main_norm = norm("mtp.0.main_norm");
    w.norm = norm(last + "norm");
    w.markov_embed = rows(last + "markov_head.embed.weight", shards_.vocab);
    w.markov_head = rows(last + "markov_head.head.weight", shards_.vocab);
    w.confidence_hidden = w.confidence_markov = matrix(last + "confidence_head.proj.weight");
    w.confidence_hidden.cols = config_.hidden_size;
    w.confidence_markov.cols = config_.dspark_markov_rank;
    w.confidence_markov.codes = static_cast<const bf16*>(w.confidence_markov.codes) + config_.hidden_size;
    for (int s = 0; s < config_.num_nextn_predict_layers; ++s)
      w.stages.push_back(block(fmt::format("mtp.{}.", s), config_.num_hidden_layers + s));
    return w;
  }

 private:
  void attention(const std::string& p, BlockWeights& w) {
    int64_t head_dim = config_.head_dim;
    w.wq_a = matrix(p + "wq_a.weight");
    w.wkv = matrix(p + "wkv.weight");
    w.wq_b = rows(p + "wq_b.weight", {shards_.heads.begin * head_dim, shards_.heads.end * head_dim});
    w.wo_a = rows(p + "wo_a.weight", shards_.group_columns);
    w.wo_b = rows(p + "wo_b.weight", shards_.hidden);
    w.q_norm = norm(p + "q_norm");
    w.kv_norm = norm(p + "kv_norm");
    if (const float* sinks = floats(p + "attn_sink"); sinks != nullptr) w.sink = sinks + shards_.heads.begin;
  }

  void compressor(const std::string& p, int ratio, BlockWeights& w) {
    w.compressor_kv = matrix(p + "compressor.wkv.weight");
    if (ratio > 1) w.compressor_gate = matrix(p + "compressor.wgate.weight");
    w.compressor_norm = norm(p + "compressor.norm");
    w.index_k = matrix(p + "indexer.wk.weight");
    w.index_k_norm = norm(p + "indexer.k_norm");
  }

  void experts(const std::string& p, Range ids, BlockWeights& w) {
    w.gate = matrix(p + "gate.weight");
    w.bias = floats(p + "gate.bias");
    w.bias_image = floats(p + "gate.bias_vl");
    const std::string s = p + "shared_experts.";
    w.shared = {.w1 = rows(s + "w1.weight", shards_.shared_width),
                .w2 = rows(s + "w2.weight", shards_.hidden),
                .w3 = rows(s + "w3.weight", shards_.shared_width)};
    for (int64_t e = ids.begin; e < ids.end; ++e) {
      const std::string x = fmt::format("{}experts.{}.", p, e);
      w.experts.push_back(
          {.w1 = matrix(x + "w1.weight"), .w2 = matrix(x + "w2.weight"), .w3 = matrix(x + "w3.weight")});
    }
    if (place_ != nullptr && !w.experts.empty())
      w.device_experts = static_cast<const kernels::ExpertWeights*>(
          place_->put(w.experts.data(), static_cast<int64_t>(w.experts.size() * sizeof(kernels::ExpertWeights))));
  }

  Weight to_weight(const std::string& name, Result<WeightView> view, bool is_table) {
    if (!view) {
      if (status_) status_ = tl::unexpected(view.error());
      return {};
    }
    Weight w{kind_of(view->kind), view->codes, view->scales, view->rows, view->cols};
    DI_CHECK(view->scales == nullptr || view->scale_stride == view->cols / 32, "{}: scales are not dense", name);
    if (place_ == nullptr) return w;
    w.codes = place_->put(view->codes, view->rows * view->code_stride, is_table);
    const int64_t scale_rows = ceil_div(view->rows, view->scale_group_rows);
    if (view->scales != nullptr)
      w.scales = static_cast<const uint8_t*>(place_->put(view->scales, scale_rows * view->scale_stride, is_table));
    return w;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const parallel::Shards& shards_;
  WeightPlace* place_;
  Result<void> status_;
};

// A smaller table is worth its place in the device's memory.
constexpr int64_t kLargeTableBytes = int64_t{1} << 30;
constexpr int64_t kPlaceAlignment = 256;

}  // namespace

Result<void> WeightPlace::allocate(Device& device, Stream& stream) {
  DI_TRY(device_, device.allocate(device_bytes_));
  DI_TRY(host_, device.allocate_host(host_bytes_));
  stream_ = &stream;
  device_bytes_ = host_bytes_ = 0;
  return {};
}

const void* WeightPlace::put(const void* bytes, int64_t size, bool is_table) {
  const bool on_host = is_table && size >= kLargeTableBytes;
  int64_t& used = on_host ? host_bytes_ : device_bytes_;
  const DeviceBuffer& memory = on_host ? host_ : device_;
  const int64_t at = used;
  used += round_up(size, kPlaceAlignment);
  if (stream_ == nullptr || size == 0) return bytes;
  DI_CHECK(used <= memory.bytes(), "weights of {} bytes in a place of {}", used, memory.bytes());
  void* to = static_cast<std::byte*>(memory.data()) + at;
  stream_->copy(to, bytes, size);
  return to;
}

Result<NetworkWeights> map_weights(const Checkpoint& checkpoint, const parallel::Shards& shards, bool with_draft,
                                   WeightPlace* place) {
  const ModelConfig& config = checkpoint.config();
  Mapper mapper(checkpoint, shards, place);
  NetworkWeights w;
  w.embed = mapper.rows("embed.weight", shards.vocab);
  w.head = mapper.rows("head.weight", shards.vocab);
  w.norm = mapper.norm("norm");
  for (int layer = 0; layer < config.num_hidden_layers; ++layer)
    w.layers.push_back(mapper.block(fmt::format("layers.{}.", layer), layer));
  if (with_draft && config.num_nextn_predict_layers > 0) w.draft = mapper.draft();
  if (!mapper.status()) return tl::unexpected(mapper.status().error());
  return w;
}

}  // namespace deepinfer::model
