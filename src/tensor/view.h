// A typed, non-owning view of a dense array: rows of `cols` elements, `stride` elements apart.
//
// Everything the kernels touch is a matrix once leading axes are folded into rows ([T, H, D] is T rows of H * D). A
// view never owns; arenas (tensor/arena.h) and mapped files do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace deepinfer {

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements between rows

  static TensorView make(void* data, DType dtype, int64_t rows, int64_t cols) {
    return {data, dtype, rows, cols, cols};
  }

  bool empty() const { return data == nullptr; }
  int64_t row_bytes() const { return cols * dtype_bytes(dtype); }
  TensorView row_range(int64_t begin, int64_t count) const {
    DI_DCHECK(begin >= 0 && begin + count <= rows, "rows {} + {} of {}", begin, count, rows);
    return {static_cast<std::byte*>(data) + begin * stride * dtype_bytes(dtype), dtype, count, cols, stride};
  }
  TensorView col_range(int64_t begin, int64_t count) const {
    DI_DCHECK(begin >= 0 && begin + count <= cols, "columns {} + {} of {}", begin, count, cols);
    return {static_cast<std::byte*>(data) + begin * dtype_bytes(dtype), dtype, rows, count, stride};
  }
  template <typename T>
  T* row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  float* f32(int64_t r) const {
    DI_DCHECK(dtype == DType::kF32, "{}", dtype_name(dtype));
    return row<float>(r);
  }
};

}  // namespace deepinfer
