// Finds the first of several strings in a text that comes in pieces, and holds back what may yet become one.
//
// The match that ends first wins, of those that end together the longest; the text before it is kept. One
// Knuth-Morris-Pratt automaton a string: the cost is the number of strings for each byte, however the text is cut.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class StopStrings {
 public:
  // Empty strings are left out.
  explicit StopStrings(const std::vector<std::string>& stops);

  // Appends to `out` what can no longer be part of a match. After a match nothing more is taken.
  void push(std::string_view text, std::string& out);
  // Appends what was held back.
  void finish(std::string& out);

  bool is_found() const { return found_.has_value(); }
  // Index of the string that was found, in the list given to the constructor.
  std::optional<int> found() const { return found_; }

 private:
  struct Automaton {
    std::string text;
    std::vector<int> fallback;  // [i]: longest proper border of the first i bytes
    int index = 0;
    int matched = 0;
  };
  void release(std::size_t keep, std::string& out);

  std::vector<Automaton> automata_;
  std::string held_;  // from begin_ on: not yet given out
  std::size_t begin_ = 0;
  std::optional<int> found_;
};

}  // namespace deepinfer::text
