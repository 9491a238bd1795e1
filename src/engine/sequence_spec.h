// What does not change about a running sequence: shared between the scheduling thread and the executing thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sequence_grammar.h"
#include "sampling/verify.h"

namespace deepinfer::engine {

struct SequenceSpec {
  sampling::RowParams params;
  sampling::RowParams draft_params;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t prompt_length = 0;
  int64_t max_total = 0;
  std::vector<int32_t> golden;    // forced output, -1: free
  std::vector<int32_t> stop_ids;  // sorted; the end token among them unless it is ignored
  sampling::VerifyMode verify_mode = sampling::VerifyMode::kNoise;
  bool wants_logprobs = false;
  bool wants_prompt_logprobs = false;
  bool uses_drafts = true;
  std::optional<GrammarSpec> grammar;
};

}  // namespace deepinfer::engine
