#include "text/stop_strings.h"

#include <algorithm>

namespace deepinfer::text {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (std::size_t s = 0; s < stops.size(); ++s) {
    const std::string& text = stops[s];
    if (text.empty()) continue;
    Automaton a{.text = text, .fallback = std::vector<int>(text.size() + 1, 0), .index = static_cast<int>(s)};
    for (std::size_t i = 1; i < text.size(); ++i) {
      auto k = static_cast<std::size_t>(a.fallback[i]);
      while (k > 0 && text[k] != text[i]) k = static_cast<std::size_t>(a.fallback[k]);
      if (text[k] == text[i]) ++k;
      a.fallback[i + 1] = static_cast<int>(k);
    }
    automata_.push_back(std::move(a));
  }
}

void StopStrings::push(std::string_view text, std::string& out) {
  if (automata_.empty()) {
    out += text;
    return;
  }
  int longest = 0;
  for (std::size_t i = 0; i < text.size() && !found_; ++i) {
    held_ += text[i];
    longest = 0;
    int match_size = 0;
    for (Automaton& a : automata_) {
      while (a.matched > 0 && a.text[static_cast<std::size_t>(a.matched)] != text[i]) {
        a.matched = a.fallback[static_cast<std::size_t>(a.matched)];
      }
      if (a.text[static_cast<std::size_t>(a.matched)] == text[i]) ++a.matched;
      longest = std::max(longest, a.matched);
      if (a.matched == static_cast<int>(a.text.size()) && a.matched > match_size) {
        match_size = a.matched;
        found_ = a.index;
      }
    }
    if (!found_) continue;
    release(static_cast<std::size_t>(match_size), out);
    held_.clear();
    begin_ = 0;
    return;
  }
  if (!found_ && !text.empty()) release(static_cast<std::size_t>(longest), out);
}

// Gives out all but the last `keep` bytes. The front is only erased once it is the larger part.
void StopStrings::release(std::size_t keep, std::string& out) {
  std::size_t end = held_.size() - keep;
  out.append(held_, begin_, end - begin_);
  begin_ = end;
  if (begin_ > held_.size() / 2) {
    held_.erase(0, begin_);
    begin_ = 0;
  }
}

void StopStrings::finish(std::string& out) {
  if (!found_) release(0, out);
}

}  // namespace deepinfer::text
