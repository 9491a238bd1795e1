#include "engine/draft_control.h"

#include "sched/block_ledger.h"
#include "weights/footprint.h"

namespace deepinfer::engine {
namespace {

sched::DraftMode mode_of(const Settings& settings) {
  if (settings.varlen < 0) return sched::DraftMode::kAuto;
  return settings.varlen == 0 ? sched::DraftMode::kFixed : sched::DraftMode::kScheduled;
}

// What a step costs before one was measured, in milliseconds at 10 GB/s; only the proportions matter.
sched::CostPrior cost_prior(const ModelConfig& config, bool is_host) {
  constexpr double kBytesPerMs = 1e7;
  const double operations_per_byte = is_host ? 20 : 200;  // that the products do while a byte is read
  const weights::DecodeBytes bytes = weights::decode_bytes(config, 0);
  return {.fixed_ms = static_cast<double>(bytes.dense) / kBytesPerMs,
          .ms_per_row = weights::decode_flops(config) / operations_per_byte / kBytesPerMs,
          .ms_per_gigabyte = 1e9 / kBytesPerMs,
          .ms_all_experts =
              static_cast<double>(bytes.experts) / config.num_experts_per_tok * config.n_routed_experts / kBytesPerMs,
          .num_experts = config.n_routed_experts,
          .experts_per_token = config.num_experts_per_tok};
}

}  // namespace

Result<std::unique_ptr<DraftControl>> DraftControl::create(const ModelConfig& config, const Settings& settings,
                                                           const MemoryPlan& plan, bool is_host) {
  const auto count = static_cast<int>(settings.confidence_temperature.size());
  if (count > 1 && count != plan.num_drafts) {
    return fail(Code::kInvalid,
                "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE has {} values; allowed: one, or {} for {} drafts", count,
                plan.num_drafts, plan.num_drafts);
  }
  return std::unique_ptr<DraftControl>(new DraftControl(config, settings, plan, is_host));
}

DraftControl::DraftControl(const ModelConfig& config, const Settings& settings, const MemoryPlan& plan, bool is_host)
    : bytes_per_token_(static_cast<double>(plan.block_bytes) / sched::kBlockTokens),
      cost_(cost_prior(config, is_host)),
      planner_({.max_draft = plan.num_drafts,
                .mode = mode_of(settings),
                .bytes_per_token = bytes_per_token_,
                .draft_share = static_cast<double>(config.num_nextn_predict_layers) / config.num_hidden_layers},
               cost_),
      calibration_(plan.num_drafts,
                   std::vector<double>(settings.confidence_temperature.begin(), settings.confidence_temperature.end()),
                   settings.batch_invariant) {}

void DraftControl::observe(const StepResult& result) {
  if (!result.is_decode_only || result.num_rows == 0) return;
  const double bytes = static_cast<double>(result.context_tokens) * bytes_per_token_;
  cost_.observe({result.num_rows, bytes}, result.forward_us / 1000);
  planner_.observe_sampler(result.num_decodes, result.sampling_us / 1000);
  if (result.draft_us > 0) planner_.observe_draft_pass(result.num_decodes, result.draft_us / 1000);
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
