#include "engine/memory_plan.h"

#include <algorithm>

#include "base/math.h"
#include "cache/global_pool.h"
#include "cache/state_pool.h"
#include "engine/executor.h"
#include "sched/block_ledger.h"

namespace deepinfer::engine {
namespace {

constexpr int kDefaultSequences = 64;
// Logits of prompt rows are made in pieces of this many rows, so that a long prompt's need no memory of their own.
constexpr int kPromptLogitRows = 64;
// Without a wish, the cache is not larger than this many sequences of full length.
constexpr int64_t kDefaultFullSequences = 4;

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

Result<void> plan_drafts(const ModelConfig& config, const EngineOptions& options, const Settings& settings,
                         MemoryPlan& plan) {
  int block = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
  int wished = options.num_drafts >= 0 ? options.num_drafts : settings.num_drafts;
  if (wished > 0 && block > 0 && wished > block) {
    return fail(Code::kInvalid, "{} drafts were asked for; the model proposes {} at a time", wished, block);
  }
  plan.num_drafts = block == 0 ? 0 : wished >= 0 ? wished : std::min(block, 5);
  plan.replay.backtracking = settings.backtracking >= 0 ? settings.backtracking : plan.num_drafts + 1;
  return {};
}

Result<void> plan_truncation(const ModelConfig& config, const EngineOptions& options, const Settings& settings,
                             MemoryPlan& plan) {
  if (options.truncation > 2) return fail(Code::kInvalid, "truncation is {}; allowed: 0 to 2", options.truncation);
  sched::ReplayConfig& replay = plan.replay;
  replay.window = config.sliding_window;
  if (config.boundary_layer() >= 0)
    replay.truncation =
        options.truncation >= 0 ? static_cast<sched::Truncation>(options.truncation) : settings.truncation;
  replay.keep = options.keep_tokens > 0 ? options.keep_tokens : settings.keep_tokens;
  // The same whatever the number of drafts, so that answers do not depend on it: as if the whole block were verified.
  const int64_t block = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
  if (replay.keep == 0) replay.keep = replay.window + std::max(replay.backtracking, block + 1) + 6;
  return validate(replay, plan.num_drafts);
}

}  // namespace

Result<MemoryPlan> plan_memory(const ModelConfig& config, const EngineOptions& options, const Settings& settings,
                               kernels::Ops& ops, int num_threads, int64_t free_memory, int default_rows) {
  MemoryPlan plan;
  DI_TRY_VOID(plan_drafts(config, options, settings, plan));
  DI_TRY_VOID(plan_truncation(config, options, settings, plan));
  plan.max_sequences = options.max_num_seqs > 0 ? options.max_num_seqs : kDefaultSequences;
  int least_rows = plan.max_sequences * (1 + plan.num_drafts);
  plan.max_rows =
      options.max_num_batched_tokens > 0 ? options.max_num_batched_tokens : std::max(default_rows, least_rows);
  if (plan.max_rows < least_rows) {
    return fail(Code::kInvalid, "max_num_batched_tokens {} is below max_num_seqs x (1 + drafts) = {} x {} = {}",
                plan.max_rows, plan.max_sequences, 1 + plan.num_drafts, least_rows);
  }
  plan.max_logit_rows = least_rows + std::max(kPromptLogitRows, plan.max_sequences);
  plan.num_slots = static_cast<int>(plan.max_sequences * settings.state_slots_ratio);

  kernels::RecordFormat format = model::record_format(ops.numerics());
  const auto state = cache::StatePlan::make(config, format, static_cast<int>(plan.replay.backtracking));
  plan.slot_bytes = state.slot_bytes();
  plan.num_windows = settings.stored_windows >= 0 ? settings.stored_windows : 2 * plan.max_sequences;
  if (plan.replay.truncation == sched::Truncation::kOff) plan.window_halves = cache::WindowHalves::kBoth;
  plan.window_bytes = cache::WindowPool::place_bytes(state, plan.window_halves);
  plan.block_bytes = cache::GlobalLayout::make(config, format).block_bytes();
  model::Limits limits{.max_rows = plan.max_rows,
                       .max_sequences = plan.max_sequences,
                       .max_positions = config.max_position_embeddings,
                       .ring = static_cast<int>(plan.replay.ring())};
  plan.scratch_bytes = model::Model::scratch_bytes(config, parallel::ParallelPlan{}, 0, ops, limits, num_threads);
  plan.buffer_bytes = Executor::buffer_bytes(config, plan.max_logit_rows, plan.max_sequences);

  int64_t slack = 2 * (plan.num_drafts + 1);  // steps in flight may run past the end of a sequence
  int64_t full = config.max_position_embeddings;
  if (options.max_model_len > full) {
    return fail(Code::kInvalid, "max_model_len {} exceeds the model's {} positions", options.max_model_len, full);
  }
  int64_t length = options.max_model_len > 0 ? options.max_model_len : full;
  int64_t per_sequence = ceil_div(length + slack, sched::kBlockTokens);
  auto budget = static_cast<int64_t>(static_cast<double>(free_memory) * options.memory_fraction);
  int64_t affordable = plan.block_bytes > 0 ? (budget - plan.fixed_bytes()) / plan.block_bytes - 1
                                            : per_sequence * kDefaultFullSequences;
  int64_t least_blocks = options.max_model_len > 0
                             ? per_sequence
                             : std::min(per_sequence, ceil_div(int64_t{1024} + slack, sched::kBlockTokens));
  if (affordable < least_blocks) {
    return fail(Code::kExhausted,
                "not enough memory: {} for {} state slots, {} for {} stored windows, {} of scratch, {} of buffers and "
                "{} for {} cache blocks; {} of {} free may be "
                "used. Lower max_num_seqs, max_num_batched_tokens or max_model_len",
                mebibytes(plan.slot_bytes * (plan.num_slots + 1)), plan.num_slots,
                mebibytes(plan.window_bytes * plan.num_windows), plan.num_windows, mebibytes(plan.scratch_bytes),
                mebibytes(plan.buffer_bytes), mebibytes(plan.block_bytes * least_blocks), least_blocks,
                mebibytes(budget), mebibytes(free_memory));
  }
  int64_t most = std::min<int64_t>(per_sequence * kDefaultFullSequences, per_sequence * plan.max_sequences);
  plan.num_blocks = std::min(affordable, std::max(most, least_blocks));
  plan.max_model_len = std::min(length, plan.num_blocks * sched::kBlockTokens - slack);
  return plan;
}

std::string MemoryPlan::description() const {
  std::string text = fmt::format("weights    {} mapped\n", mebibytes(weight_bytes));
  text +=
      fmt::format("cache      {} in {} blocks of {} positions, {:.1f} B a token\n", mebibytes(block_bytes * num_blocks),
                  num_blocks, sched::kBlockTokens, static_cast<double>(block_bytes) / sched::kBlockTokens);
  text += fmt::format("states     {} in {} slots\n", mebibytes(slot_bytes * (num_slots + 1)), num_slots);
  text += fmt::format("windows    {} in {} places for stored prefix boundaries, {}\n",
                      mebibytes(window_bytes * num_windows), num_windows,
                      window_halves == cache::WindowHalves::kBoth ? "all layers" : "producer layers");
  text += fmt::format("scratch    {}, buffers {}\n", mebibytes(scratch_bytes), mebibytes(buffer_bytes));
  text += fmt::format("limits     {} sequences, {} rows a step, context {}\n", max_sequences, max_rows, max_model_len);
  const bool is_masked = replay.truncation == sched::Truncation::kMask;
  text += fmt::format("drafts     {} a step; prompt rows kept by the decoder half: {}{}\n", num_drafts,
                      replay.truncation != sched::Truncation::kOff ? std::to_string(replay.keep) : "all",
                      is_masked ? ", the others computed and masked" : "");
  return text;
}

}  // namespace deepinfer::engine
