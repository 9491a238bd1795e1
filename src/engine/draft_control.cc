#include "engine/draft_control.h"

namespace deepinfer::engine {
namespace {

sched::DraftMode mode_of(const Settings& settings) {
  if (settings.varlen < 0) return sched::DraftMode::kAuto;
  return settings.varlen == 0 ? sched::DraftMode::kFixed : sched::DraftMode::kScheduled;
}

}  // namespace

Result<std::unique_ptr<DraftControl>> DraftControl::create(const ModelConfig& config, const Settings& settings,
                                                           const MemoryPlan& plan) {
  const auto count = static_cast<int>(settings.confidence_temperature.size());
  if (count > 1 && count != plan.num_drafts) {
    return fail(Code::kInvalid,
                "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE has {} values; allowed: one, or {} for {} drafts", count,
                plan.num_drafts, plan.num_drafts);
  }
  return std::unique_ptr<DraftControl>(new DraftControl(config, settings, plan));
}

DraftControl::DraftControl(const ModelConfig& config, const Settings& settings, const MemoryPlan& plan)
    : bytes_per_token_(static_cast<double>(plan.block_bytes) / 128),
      cost_({.num_experts = config.n_routed_experts, .experts_per_token = config.num_experts_per_tok}),
      planner_({.max_draft = plan.num_drafts, .mode = mode_of(settings), .bytes_per_token = bytes_per_token_}, cost_),
      calibration_(plan.num_drafts,
                   std::vector<double>(settings.confidence_temperature.begin(), settings.confidence_temperature.end()),
                   settings.batch_invariant) {}

void DraftControl::observe(const StepResult& result) {
  if (!result.is_decode_only || result.num_rows == 0) return;
  const double bytes = static_cast<double>(result.context_tokens) * bytes_per_token_;
  cost_.observe({result.num_rows, bytes}, result.forward_us / 1000);
  planner_.observe_sampler(result.num_decodes, result.sampling_us / 1000);
  if (result.draft_us > 0) planner_.observe_draft_pass(result.num_decodes, result.draft_us / 1000);
  int emitted = 0;
  for (const RunResult& run : result.runs) emitted += static_cast<int>(run.tokens.size());
  planner_.observe_emitted(result.expected_tokens, emitted);
}

std::vector<float> DraftControl::survivals(const RunResult& run, double temperature) {
  for (size_t k = 0; k < run.labels.size(); ++k)
    calibration_.observe(static_cast<int>(k), temperature, run.label_logits[k], run.labels[k]);
  std::vector<float> survivals;
  for (size_t k = 0; k < run.confidences.size(); ++k) {
    const float confidence = calibration_.confidence(static_cast<int>(k), temperature, run.confidences[k]);
    survivals.push_back(k == 0 ? confidence : survivals.back() * confidence);
  }
  return survivals;
}

}  // namespace deepinfer::engine
