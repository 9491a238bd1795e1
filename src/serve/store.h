// Answers that are kept for a limited time, within a limit of bytes: the oldest go first.
//
// Each entry belongs to a tenant; another tenant does not find it. Thread-safe: workers read while the loop writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "serve/api_error.h"

namespace deepinfer::serve {

template <typename T>
class Store {
 public:
  using Clock = std::chrono::steady_clock;

  Store(std::chrono::seconds keep, int64_t max_bytes) : keep_(keep), max_bytes_(max_bytes) {}

  // False if it is larger than the whole store.
  bool put(const std::string& tenant, const std::string& id, T value, int64_t bytes, Clock::time_point now) {
    std::lock_guard lock(mutex_);
    drop_old(now);
    if (bytes > max_bytes_) return false;
    erase(tenant + '\n' + id);
    while (bytes_ + bytes > max_bytes_) erase(order_.front());
    order_.push_back(tenant + '\n' + id);
    entries_.emplace(order_.back(), Entry{std::move(value), bytes, now + keep_, std::prev(order_.end())});
    bytes_ += bytes;
    return true;
  }

  std::optional<T> get(const std::string& tenant, std::string_view id, Clock::time_point now) {
    std::lock_guard lock(mutex_);
    drop_old(now);
    auto it = entries_.find(tenant + '\n' + std::string(id));
    if (it == entries_.end()) return std::nullopt;
    return it->second.value;
  }

  bool remove(const std::string& tenant, std::string_view id) {
    std::lock_guard lock(mutex_);
    return erase(tenant + '\n' + std::string(id));
  }

  int64_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Entry {
    T value;
    int64_t bytes;
    Clock::time_point end;
    std::list<std::string>::iterator place;
  };
  // All are kept equally long, so the oldest stand first.
  void drop_old(Clock::time_point now) {
    while (!order_.empty() && entries_.at(order_.front()).end <= now) erase(order_.front());
  }
  bool erase(std::string name) {
    auto it = entries_.find(name);
    if (it == entries_.end()) return false;
    bytes_ -= it->second.bytes;
    order_.erase(it->second.place);
    entries_.erase(it);
    return true;
  }

  std::chrono::seconds keep_;
  int64_t max_bytes_;
  mutable std::mutex mutex_;      // guards what follows
  std::list<std::string> order_;  // oldest first
  std::unordered_map<std::string, Entry> entries_;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer::serve
