// Stored windows: copies of the window state at block boundaries, from which a prefix hit goes on without a replay.
//
//   layer 0      place 0: records of positions [H - window, H)   place 1: ...
//   layer 1      ...
//
//   With truncated prompts only the producer half is needed, layers below the boundary: the consumers' windows are
//   rebuilt by the kept rows. Without truncation every layer and draft stage is stored. Open groups are empty at a
//   block boundary and never stored. Which boundary a place belongs to is the prefix index's knowledge
//   (window_places.h).
//
// Owned by the thread that owns the stream.
#pragma once

#include <cstdint>

#include "cache/state_pool.h"

namespace deepinfer::cache {

enum class WindowHalves : uint8_t { kProducers, kBoth };

class WindowPool {
 public:
  static int64_t place_bytes(const StatePlan& plan, WindowHalves halves);
  // A pool without places holds no memory.
  static Result<WindowPool> create(Device& device, const StatePlan& plan, WindowHalves halves, int num_places);

  int num_places() const { return num_places_; }
  int64_t bytes() const { return memory_.bytes(); }

  // Copies the windows before position `end` out of a slot, whose rings still hold them, or into one.
  void store(Stream& stream, int32_t place, const StatePool& states, int32_t slot, int64_t end);
  void load(Stream& stream, const StatePool& states, int32_t slot, int32_t place, int64_t end) const;

 private:
  // Calls f(stored records, the slot's records, bytes) for each piece that is contiguous in both.
  template <typename F>
  void pieces(const StatePool& states, int32_t slot, int32_t place, int64_t end, F&& f) const;

  int num_layers_ = 0, num_places_ = 0;
  DeviceBuffer memory_;
};

}  // namespace deepinfer::cache
