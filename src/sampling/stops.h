// Where an answer ends by id or by length; strings in its text are found by text/stop_strings.h.
#pragma once

#include <cstdint>
#include <span>

namespace deepinfer::sampling {

enum class StopReason : uint8_t { kNone, kStop, kLength };

struct StopRule {
  int32_t eos_id = -1;
  bool ignores_eos = false;
  std::span<const int32_t> stop_ids;
  int64_t max_tokens = 1;
};

struct StopCut {
  int kept = 0;  // tokens of the step that belong to the answer, the stopping one included
  StopReason reason = StopReason::kNone;
};

// Scans the tokens of one step in order; an id that stops wins over the length reached by the same token.
StopCut cut_at_stop(std::span<const int32_t> emitted, int64_t output_length_before, const StopRule& rule);

}  // namespace deepinfer::sampling
