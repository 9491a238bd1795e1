// Which tokens a sequence has seen, for the penalties: in the prompt (repetition only) and how often in the output.
//
// Kept only for requests that ask for a penalty. Verification adds drafts as it walks them and takes them back, so
// remove() undoes one add(). Owned by the sequence; not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace deepinfer::sampling {

class TokenCounts {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t output_count = 0;
    bool is_in_prompt = false;
  };

  void add_prompt(std::span<const int32_t> prompt) {
    for (int32_t id : prompt) entry(id).is_in_prompt = true;
  }
  void add(int32_t id) { ++entry(id).output_count; }
  void remove(int32_t id) {
    Entry& e = entry(id);
    DI_CHECK(e.output_count > 0, "token {} was never added", id);
    --e.output_count;
  }
  std::span<const Entry> entries() const { return entries_; }  // distinct ids, in order of first sight

 private:
  Entry& entry(int32_t id) {
    auto [at, is_new] = places_.try_emplace(id, static_cast<int32_t>(entries_.size()));
    if (is_new) entries_.push_back({.id = id});
    return entries_[static_cast<std::size_t>(at->second)];
  }

  std::vector<Entry> entries_;
  std::unordered_map<int32_t, int32_t> places_;  // id -> index in entries_
};

}  // namespace deepinfer::sampling
