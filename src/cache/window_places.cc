#include "cache/window_places.h"

#include "base/check.h"

namespace deepinfer::cache {

std::optional<WindowPlaces::Taken> WindowPlaces::take() {
  Taken taken;
  if (free_.empty()) {
    if (by_use_.empty()) return std::nullopt;
    const int32_t oldest = by_use_.begin()->second;
    taken.evicted_node = at(oldest).node;
    drop(oldest);
  }
  taken.place = free_.back();
  free_.pop_back();
  at(taken.place).is_taken = true;
  return taken;
}

void WindowPlaces::give_back(int32_t place) {
  DI_CHECK(at(place).is_taken, "place {} is not taken", place);
  at(place) = {};
  free_.push_back(place);
}

void WindowPlaces::store(int32_t place, int32_t node) {
  DI_CHECK(at(place).is_taken, "place {} is not taken", place);
  at(place) = {.is_taken = false, .node = node, .last_use = ++clock_};
  by_use_.emplace(clock_, place);
}

void WindowPlaces::drop(int32_t place) {
  DI_CHECK(at(place).node != kNone, "place {} is not stored", place);
  by_use_.erase({at(place).last_use, place});
  at(place) = {};
  free_.push_back(place);
}

void WindowPlaces::touch(int32_t place) {
  set_use(place, ++clock_);
}

void WindowPlaces::retire(int32_t place) {
  set_use(place, 0);
}

void WindowPlaces::set_use(int32_t place, uint64_t use) {
  DI_CHECK(at(place).node != kNone, "place {} is not stored", place);
  by_use_.erase({at(place).last_use, place});
  at(place).last_use = use;
  by_use_.emplace(use, place);
}

}  // namespace deepinfer::cache
