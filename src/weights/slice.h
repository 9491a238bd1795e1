// Parts of a weight: in logical rows and columns, and as rectangles of the stored bytes.
//
//   Borders must not cut a scale group: columns in multiples of 32, rows of kind fp8 in multiples of 32 (or the end).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "weights/inventory.h"

namespace deepinfer::weights {

struct Slice {
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
  int64_t rows() const { return row_end - row_begin; }
  int64_t cols() const { return col_end - col_begin; }
};

// A rectangle of bytes in a stored tensor.
struct ByteRect {
  int64_t offset = 0;  // of its first byte in the tensor
  int64_t stride = 0;  // bytes between rows in the tensor
  int64_t row_bytes = 0, rows = 0;
  int64_t size() const { return row_bytes * rows; }
};

// kInvalid: the slice lies outside the weight or cuts a scale group.
Result<void> check_slice(const WeightSpec& spec, const Slice& slice);
// Rows that share a scale.
int64_t scale_group_rows(Kind kind);
ByteRect code_rect(const WeightSpec& spec, const Slice& slice);
ByteRect scale_rect(const WeightSpec& spec, const Slice& slice);  // empty without scales

// Sizes of the buffers that a packed copy of the slice needs.
struct SliceBytes {
  int64_t codes = 0, scales = 0;
};
inline SliceBytes slice_bytes(const WeightSpec& spec, const Slice& slice) {
  return {.codes = code_rect(spec, slice).size(), .scales = scale_rect(spec, slice).size()};
}

}  // namespace deepinfer::weights
