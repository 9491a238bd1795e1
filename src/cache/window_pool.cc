#include "cache/window_pool.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

int num_layers(const StatePlan& plan, WindowHalves halves) {
  return halves == WindowHalves::kProducers ? plan.boundary : plan.num_windows();
}

int64_t layer_bytes(const StatePlan& plan) {
  return plan.window * kernels::window_record_bytes(plan.format, plan.head_dim);
}

}  // namespace

int64_t WindowPool::place_bytes(const StatePlan& plan, WindowHalves halves) {
  return num_layers(plan, halves) * layer_bytes(plan);
}

Result<WindowPool> WindowPool::create(Device& device, const StatePlan& plan, WindowHalves halves, int num_places) {
  WindowPool pool;
  pool.num_layers_ = num_layers(plan, halves);
  pool.num_places_ = num_places;
  if (num_places == 0) return pool;
  DI_TRY(pool.memory_, device.allocate(place_bytes(plan, halves) * num_places));
  return pool;
}

template <typename F>
void WindowPool::pieces(const StatePool& states, int32_t slot, int32_t place, int64_t end, F&& f) const {
  DI_CHECK(place >= 0 && place < num_places_, "place {} of {}", place, num_places_);
  const StatePlan& plan = states.plan();
  const int64_t record_bytes = kernels::window_record_bytes(plan.format, plan.head_dim);
  const int64_t begin = std::max<int64_t>(0, end - plan.window);
  for (int layer = 0; layer < num_layers_; ++layer) {
    const kernels::WindowCache window = states.window(layer);
    std::byte* stored =
        static_cast<std::byte*>(memory_.data()) + (int64_t{layer} * num_places_ + place) * layer_bytes(plan);
    for (int64_t at = begin; at < end;) {
      const int64_t count = std::min(end - at, plan.ring() - at % plan.ring());  // up to the ring's end
      f(stored + (at - begin) * record_bytes, window.record(slot, at), count * record_bytes);
      at += count;
    }
  }
}

void WindowPool::store(Stream& stream, int32_t place, const StatePool& states, int32_t slot, int64_t end) {
  pieces(states, slot, place, end,
         [&](std::byte* stored, std::byte* ring, int64_t bytes) { stream.copy(stored, ring, bytes); });
}

void WindowPool::load(Stream& stream, const StatePool& states, int32_t slot, int32_t place, int64_t end) const {
  pieces(states, slot, place, end,
         [&](std::byte* stored, std::byte* ring, int64_t bytes) { stream.copy(ring, stored, bytes); });
}

}  // namespace deepinfer::cache
