#include "sampling/stops.h"

#include <algorithm>

namespace deepinfer::sampling {

StopCut cut_at_stop(std::span<const int32_t> emitted, int64_t output_length_before, const StopRule& rule) {
  StopCut cut;
  for (int32_t id : emitted) {
    ++cut.kept;
    bool stops = (id == rule.eos_id && !rule.ignores_eos) ||
                 std::find(rule.stop_ids.begin(), rule.stop_ids.end(), id) != rule.stop_ids.end();
    if (stops)
      cut.reason = StopReason::kStop;
    else if (output_length_before + cut.kept >= rule.max_tokens)
      cut.reason = StopReason::kLength;
    if (cut.reason != StopReason::kNone) break;
  }
  return cut;
}

}  // namespace deepinfer::sampling
