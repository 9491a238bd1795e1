// What the engine will allocate, computed before anything is: from the configuration, the machine and the wishes.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cache/window_pool.h"
#include "deepinfer/engine.h"
#include "engine/settings.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "sched/replay_plan.h"

namespace deepinfer::engine {

struct MemoryPlan {
  int num_drafts = 0;  // drafts a step verifies at most
  sched::ReplayConfig replay;
  int max_sequences = 0, max_rows = 0, max_logit_rows = 0;
  int num_slots = 0;                                                    // private states, slot 0 (padding) not counted
  int num_windows = 0;                                                  // places of stored windows
  cache::WindowHalves window_halves = cache::WindowHalves::kProducers;  // what a place holds
  int64_t num_blocks = 0;  // of 128 positions, block 0 (padding) not counted
  int64_t max_model_len = 0;

  int64_t weight_bytes = 0;  // mapped, not allocated
  int64_t slot_bytes = 0, window_bytes = 0, block_bytes = 0, scratch_bytes = 0, buffer_bytes = 0;
  // Everything but the blocks.
  int64_t fixed_bytes() const {
    return slot_bytes * (num_slots + 1) + window_bytes * num_windows + scratch_bytes + buffer_bytes;
  }
  int64_t allocated_bytes() const { return fixed_bytes() + block_bytes * (num_blocks + 1); }
  std::string description() const;
};

// `default_rows`: of a step, unless the options name a number.
// kExhausted says what is needed, what is there and which option to lower; kInvalid names option, value and limit.
Result<MemoryPlan> plan_memory(const ModelConfig& config, const EngineOptions& options, const Settings& settings,
                               kernels::Ops& ops, int num_threads, int64_t free_memory, int default_rows);

}  // namespace deepinfer::engine
