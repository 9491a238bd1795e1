// Who has which place of the stored windows (window_pool.h): bookkeeping only, a part of the prefix index.
//
//   A place is free, taken (a sequence has a copy on its way into it), or stored: the windows of a node of the tree.
//   When none is free, the stored windows that were used least recently make room; retired ones go before all others.
//   Nobody holds stored windows while they are copied: steps run in the order in which they were planned, so a place
//   that was given away after a plan reads it is written after that plan has run.
//
// Not thread-safe; the scheduler thread owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace deepinfer::cache {

class WindowPlaces {
 public:
  static constexpr int32_t kNone = -1;

  explicit WindowPlaces(int32_t num_places) : entries_(static_cast<std::size_t>(num_places)) {
    for (int32_t place = num_places - 1; place >= 0; --place) free_.push_back(place);
  }

  struct Taken {
    int32_t place = kNone;
    int32_t evicted_node = kNone;  // whose windows had to go
  };
  // nullopt if every place is taken.
  std::optional<Taken> take();
  void give_back(int32_t place);            // a taken one becomes free
  void store(int32_t place, int32_t node);  // a taken one becomes the node's, used now
  void drop(int32_t place);                 // a stored one becomes free: its node is gone
  void touch(int32_t place);                // used now
  void retire(int32_t place);               // goes next

  int32_t num_places() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_stored() const { return static_cast<int32_t>(by_use_.size()); }
  int32_t node(int32_t place) const { return at(place).node; }  // kNone unless stored

 private:
  struct Entry {
    bool is_taken = false;
    int32_t node = kNone;
    uint64_t last_use = 0;  // 0: retired
  };
  Entry& at(int32_t place) { return entries_[static_cast<std::size_t>(place)]; }
  const Entry& at(int32_t place) const { return entries_[static_cast<std::size_t>(place)]; }
  void set_use(int32_t place, uint64_t use);

  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::set<std::pair<uint64_t, int32_t>> by_use_;  // stored ones
  uint64_t clock_ = 0;
};

}  // namespace deepinfer::cache
