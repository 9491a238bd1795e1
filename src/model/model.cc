// How a rank's model is made; the passes are in forward.cc.
#include "model/model.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "model/rope.h"

namespace deepinfer::model {
namespace {

Result<void> check_vocabulary(const ModelConfig& config, const std::vector<int32_t>& compressed_ids) {
  if (config.engram_layer_ids.empty()) return {};
  if (static_cast<int64_t>(compressed_ids.size()) != config.vocab_size)
    return fail(Code::kInvalid, "the tokenizer has {} ids, the model {}", compressed_ids.size(), config.vocab_size);
  const int count = *std::max_element(compressed_ids.begin(), compressed_ids.end()) + 1;
  if (count != config.engram_compressed_vocab_size)
    return fail(Code::kInvalid, "the tokenizer's compressed vocabulary has {} ids, engram_compressed_vocab_size is {}",
                count, config.engram_compressed_vocab_size);
  return {};
}

}  // namespace

Model::Model(const ModelConfig& config, parallel::Shards shards, const RankParts& parts, const Limits& limits,
             std::vector<int32_t> compressed_ids)
    : config_(config),
      shards_(std::move(shards)),
      parts_(parts),
      limits_(limits),
      boundary_(config.boundary_layer()),
      ctx_{config_, shards_, parts_},
      frequencies_{rope_frequencies(config_, false), rope_frequencies(config_, true)},
      draft_(config_) {
  if (!config_.engram_layer_ids.empty()) engram_ = std::make_unique<Engram>(config_, std::move(compressed_ids));
}

void Model::plan(Arena& arena) {
  const kernels::Ops& ops = *parts_.ops;
  const DType activation = ops.activation_dtype();
  // A draft pass uses the same buffers as a forward pass, after it.
  const int64_t draft_rows = int64_t{config_.dspark_block_size} * limits_.max_sequences;
  const int64_t rows = std::max(limits_.max_rows, draft_rows);
  streams_.plan(arena, config_, activation, rows);
  scratch_ = Scratch::plan(arena, config_, shards_, activation, record_format(ops.numerics()), rows);
  for (Region* region : {&all_, &kept_, &wanted_})
    region->plan(arena, config_, limits_.max_rows, limits_.max_sequences);
  draft_.plan(arena, limits_, activation);
  if (engram_ != nullptr) engram_->plan(arena, limits_.max_rows);
  ids_ = arena.array<int32_t>(limits_.max_rows);
  tables_ = arena.array<int32_t>(limits_.max_sequences * table_length());
  for (auto* ranges : {&logit_ranges_, &ranges_}) ranges->reserve(static_cast<size_t>(limits_.max_rows));
}

int64_t Model::table_length() const {
  return ceil_div(limits_.max_positions, cache::kBlockPositions);
}

kernels::Ops::WorkspaceShape Model::workspace_shape() const {
  const ModelConfig& c = config_;
  const int64_t d = c.hidden_size;
  return {.rows = std::max(limits_.max_rows, int64_t{c.dspark_block_size} * limits_.max_sequences),
          .max_cols = std::max({d * static_cast<int64_t>(std::max<size_t>(c.dspark_target_layer_ids.size(), 1)),
                                int64_t{c.engram_columns()} * c.engram_head_dim, int64_t{c.o_groups} * c.o_lora_rank,
                                int64_t{c.q_lora_rank}, int64_t{c.moe_intermediate_size}}),
          .max_positions = limits_.max_positions,
          .heads = shards_.heads.size(),
          .head_dim = c.head_dim,
          .index_heads = c.index_n_heads,
          .index_dim = c.index_head_dim,
          .attention_keys = c.sliding_window + std::max(c.index_topk, c.dspark_block_size),
          .hidden = d,
          .expert_width = c.moe_intermediate_size,
          .experts = std::max(c.n_routed_experts, c.dspark_n_routed_experts),
          .experts_per_token = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok),
          .threads = parts_.num_threads};
}

Result<int64_t> Model::weight_bytes(const weights::Checkpoint& checkpoint, const parallel::ParallelPlan& plan, int rank,
                                    const Device& device, bool with_draft) {
  if (device.is_host()) return 0;
  WeightPlace counting;
  const auto shards = parallel::Shards::make(checkpoint.config(), plan, rank);
  DI_TRY([[maybe_unused]] NetworkWeights weights, map_weights(checkpoint, shards, with_draft, &counting));
  return counting.device_bytes();
}

int64_t Model::scratch_bytes(const ModelConfig& config, const parallel::ParallelPlan& plan, int rank, kernels::Ops& ops,
                             const Limits& limits, int num_threads) {
  // Sizes do not depend on which compressed id a token has.
  std::vector<int32_t> any_ids(static_cast<size_t>(config.vocab_size));
  Model model(config, parallel::Shards::make(config, plan, rank), {.ops = &ops, .num_threads = num_threads}, limits,
              std::move(any_ids));
  Arena counting;
  model.plan(counting);
  return counting.peak() + ops.workspace_bytes(model.workspace_shape());
}

Result<std::unique_ptr<Model>> Model::create(const weights::Checkpoint& checkpoint, const parallel::ParallelPlan& plan,
                                             int rank, const RankParts& parts, ModelOptions options) {
  const ModelConfig& config = checkpoint.config();
  DI_TRY_VOID(parallel::validate(plan, config));
  DI_TRY_VOID(check_vocabulary(config, options.compressed_ids));
  DI_CHECK(parts.comm->size() == plan.tp, "a communicator of {} ranks for tp {}", parts.comm->size(), plan.tp);
  DI_CHECK(parts.global->layout().format == record_format(parts.ops->numerics()),
           "cache format does not fit the numerics");
  std::unique_ptr<Model> model(new Model(config, parallel::Shards::make(config, plan, rank), parts, options.limits,
                                         std::move(options.compressed_ids)));
  DI_TRY(model->weights_, map_weights(checkpoint, model->shards_, options.with_draft,
                                      parts.device->is_host() ? nullptr : &model->place_));
  if (!parts.device->is_host()) {  // counted; now for good
    DI_TRY_VOID(model->place_.allocate(*parts.device, *parts.stream));
    DI_TRY(model->weights_, map_weights(checkpoint, model->shards_, options.with_draft, &model->place_));
    parts.stream->synchronize();
  }
  if (model->engram_ != nullptr && parts.device->is_host()) model->engram_->open_tables(model->weights_.layers);
  Arena counting;
  model->plan(counting);
  DI_TRY(model->memory_, parts.device->allocate(counting.peak()));
  Arena arena(model->memory_.data(), model->memory_.bytes());
  model->plan(arena);
  DI_TRY(model->workspace_, parts.device->allocate(parts.ops->workspace_bytes(model->workspace_shape())));
  parts.ops->set_workspace({static_cast<std::byte*>(model->workspace_.data()), model->workspace_.bytes()});
  return model;
}

}  // namespace deepinfer::model
