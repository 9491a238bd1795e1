// Who holds which block: a free list and counts.
//
//   ids are 1 .. num_blocks; block 0 is never handed out: kernels read it for padding rows, so it must stay zero.
//   A block is in exactly one of three states: free, held (refs > 0), cached (refs == 0, named by the prefix index).
//   The bytes are GlobalPool's; this is bookkeeping only. Which cached block makes room is the index's decision.
//
// Not thread-safe; the scheduler thread owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace deepinfer::cache {

class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t num_blocks) : entries_(static_cast<std::size_t>(num_blocks) + 1) {
    for (int32_t id = num_blocks; id >= 1; --id) free_.push_back(id);
  }

  int32_t num_blocks() const { return static_cast<int32_t>(entries_.size()) - 1; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t refs(int32_t block) const { return at(block).refs; }
  int32_t node(int32_t block) const { return at(block).node; }  // of the index, -1: unnamed

  // A free block with one holder.
  std::optional<int32_t> take_free() {
    if (free_.empty()) return std::nullopt;
    int32_t block = free_.back();
    free_.pop_back();
    at(block) = {.refs = 1, .node = -1};
    return block;
  }
  void share(int32_t block) {
    Entry& e = at(block);
    DI_CHECK(e.refs > 0 || e.node >= 0, "block {} is free and cannot be shared", block);
    ++e.refs;
  }
  // One holder less. An unnamed block without holders becomes free. True if a named block has lost its last holder.
  bool release(int32_t block) {
    Entry& e = at(block);
    DI_CHECK(e.refs > 0, "block {} has no holder", block);
    if (--e.refs > 0) return false;
    if (e.node >= 0) return true;
    free_.push_back(block);
    return false;
  }
  void set_node(int32_t block, int32_t node) {
    Entry& e = at(block);
    DI_CHECK(e.refs > 0 && e.node < 0, "block {} has {} holders and node {}", block, e.refs, e.node);
    e.node = node;
  }
  // The index gives a name up; without holders the block becomes free.
  void clear_node(int32_t block) {
    Entry& e = at(block);
    DI_CHECK(e.node >= 0, "block {} is unnamed", block);
    e.node = -1;
    if (e.refs == 0) free_.push_back(block);
  }

 private:
  struct Entry {
    int32_t refs = 0, node = -1;
  };
  Entry& at(int32_t block) {
    DI_CHECK(block >= 1 && block <= num_blocks(), "block {} of {}", block, num_blocks());
    return entries_[static_cast<std::size_t>(block)];
  }
  const Entry& at(int32_t block) const { return const_cast<BlockAllocator*>(this)->at(block); }

  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
};

}  // namespace deepinfer::cache
