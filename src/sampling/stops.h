// Where an answer ends: by id, by length, or by a string in its text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Finds stop strings in a text that comes in pieces, and holds back what may still become one.
//
//   feed("ab<e"), stops {"<end>"} -> visible "ab", held "<e";  feed("nd>x") -> stopped, visible ""
//
// The earliest complete match wins. One per answer; not thread-safe.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Piece {
    std::string visible;      // text that is certain not to begin a stop string
    bool is_stopped = false;  // everything from the match on was dropped
  };
  Piece feed(std::string_view text);
  std::string flush();  // what was held back, when the answer ended for another reason

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace deepinfer::sampling
