// One planned allocation, cut into aligned pieces in order.
//
// A plan is made twice with the same code: first on an Arena without memory, which only counts, then on one with it.
// Nothing is freed piecewise; reset() starts over. So the step loop allocates nothing and the size is known beforehand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/math.h"
#include "tensor/view.h"

namespace deepinfer {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;  // a cache line pair, and what GPU copies like

  Arena() = default;  // counts only
  Arena(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), capacity_(bytes) {}

  void* take(int64_t bytes) {
    int64_t at = used_;
    used_ = round_up(used_ + bytes, kAlignment);
    if (used_ > peak_) peak_ = used_;
    if (data_ == nullptr) return nullptr;
    DI_CHECK(used_ <= capacity_, "arena of {} bytes, {} needed: the plan is wrong", capacity_, used_);
    return data_ + at;
  }
  TensorView matrix(DType dtype, int64_t rows, int64_t cols) {
    return TensorView::make(take(rows * cols * dtype_bytes(dtype)), dtype, rows, cols);
  }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
  }

  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  void reset(int64_t mark = 0) { used_ = mark; }

 private:
  std::byte* data_ = nullptr;
  int64_t capacity_ = 0, used_ = 0, peak_ = 0;
};

}  // namespace deepinfer
