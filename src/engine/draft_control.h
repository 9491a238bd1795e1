// How many drafts a step verifies, and what is learnt for it: the planner, its cost model and the calibration of the
// confidence head, fed from the results of steps (sched/draft_planner.h). The scheduling thread owns it.
#pragma once

#include <memory>
#include <vector>

#include "engine/executor.h"
#include "engine/memory_plan.h"
#include "engine/settings.h"
#include "sched/calibration.h"
#include "sched/draft_planner.h"

namespace deepinfer::engine {

class DraftControl {
 public:
  // `is_host`: the model runs on a processor, which guesses other proportions for steps not measured yet. kInvalid if
  // the settings' temperatures do not fit the plan's number of drafts, which is not 0.
  static Result<std::unique_ptr<DraftControl>> create(const ModelConfig& config, const Settings& settings,
                                                      const MemoryPlan& plan, bool is_host);

  sched::DraftDecision plan(std::span<const sched::DraftQuery> queries, std::span<int> drafts) {
    return planner_.plan(queries, drafts);
  }
  // What a step cost and brought.
  void observe(const StepResult& result);
  // Corrects the head by the drafts that a run verified; the new drafts' survivals, products of corrected confidences.
  // `temperature` is the request's.
  std::vector<float> survivals(const RunResult& run, double temperature);
  double confidence_error() const { return calibration_.error(); }
  void forget(sched::SeqId seq) { planner_.forget(static_cast<int32_t>(seq)); }

 private:
  DraftControl(const ModelConfig& config, const Settings& settings, const MemoryPlan& plan, bool is_host);

  double bytes_per_token_;  // of global blocks
  sched::CostModel cost_;
  sched::DraftPlanner planner_;
  sched::Calibration calibration_;
};

}  // namespace deepinfer::engine
