// The tokens after which a grammar starts, found as they come: Knuth, Morris and Pratt's automaton, so that overlapping
// beginnings are not missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace deepinfer::grammar {

class Trigger {
 public:
  Trigger() = default;
  explicit Trigger(std::vector<int32_t> tokens, std::optional<int32_t> bound)
      : tokens_(std::move(tokens)), failure_(tokens_.size()), bound_(bound) {
    for (std::size_t i = 1, length = 0; i < tokens_.size();) {
      if (tokens_[i] == tokens_[length]) {
        failure_[i++] = static_cast<int>(++length);
      } else if (length > 0) {
        length = static_cast<std::size_t>(failure_[length - 1]);
      } else {
        failure_[i++] = 0;
      }
    }
  }

  int size() const { return static_cast<int>(tokens_.size()); }
  int32_t token(int position) const { return tokens_[static_cast<std::size_t>(position)]; }
  bool is_bound(int32_t token) const { return bound_ == token; }
  // Tokens of the trigger that the output ends with, given how many it ended with before `token`; size(): all.
  int advance(int matched, int32_t token) const {
    while (matched > 0 && tokens_[static_cast<std::size_t>(matched)] != token)
      matched = failure_[static_cast<std::size_t>(matched) - 1];
    return matched + (tokens_[static_cast<std::size_t>(matched)] == token);
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int> failure_;
  std::optional<int32_t> bound_;
};

}  // namespace deepinfer::grammar
