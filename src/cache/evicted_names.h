// Names of blocks that were evicted lately: a prompt that misses one of them was known. Bounded; the oldest are
// forgotten.
//
// Not thread-safe; the scheduler thread owns it.
#pragma once

#include <cstring>
#include <deque>
#include <unordered_set>

#include "cache/packed.h"

namespace deepinfer::cache {

struct NameHash {  // names are digests: any bytes of them are spread well
  std::size_t operator()(const Digest& d) const {
    std::size_t h;
    std::memcpy(&h, d.data(), sizeof h);
    return h;
  }
};

class EvictedNames {
 public:
  explicit EvictedNames(std::size_t most) : most_(most) {}

  void add(const Digest& name) {
    if (!names_.insert(name).second) return;
    order_.push_back(name);
    if (order_.size() <= most_) return;
    names_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const Digest& name) const { return names_.contains(name); }

 private:
  std::size_t most_;
  std::unordered_set<Digest, NameHash> names_;
  std::deque<Digest> order_;  // oldest first
};

}  // namespace deepinfer::cache
