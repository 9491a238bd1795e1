#include "sampling/stops.h"

#include <algorithm>
#include <utility>

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

StopStrings::Piece StopStrings::feed(std::string_view text) {
  held_ += text;
  std::size_t match = std::string::npos;
  for (const std::string& stop : stops_) match = std::min(match, held_.find(stop));
  if (match != std::string::npos) {
    Piece piece{held_.substr(0, match), true};
    held_.clear();
    return piece;
  }
  std::size_t hold = 0;  // longest end of the text that begins a stop string
  for (const std::string& stop : stops_) {
    std::size_t longest = std::min(stop.size() - 1, held_.size());
    for (std::size_t n = longest; n > hold; --n)
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) hold = n;
  }
  Piece piece{held_.substr(0, held_.size() - hold), false};
  held_.erase(0, held_.size() - hold);
  return piece;
}

std::string StopStrings::flush() {
  return std::exchange(held_, {});
}

}  // namespace deepinfer::sampling
