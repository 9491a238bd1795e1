#include "weights/slice.h"

#include "base/math.h"

namespace deepinfer::weights {
namespace {

constexpr int64_t kScaleBlock = 32;

int64_t bytes_of_columns(Kind kind, int64_t cols) {
  switch (kind) {
    case Kind::kBF16:
      return cols * 2;
    case Kind::kF32:
      return cols * 4;
    case Kind::kFp4:
      return cols / 2;
    default:
      return cols;
  }
}

}  // namespace

int64_t scale_group_rows(Kind kind) {
  return kind == Kind::kFp8 ? kScaleBlock : 1;
}

ByteRect code_rect(const WeightSpec& spec, const Slice& s) {
  const int64_t stride = spec.code_row_bytes();
  return {.offset = s.row_begin * stride + bytes_of_columns(spec.kind, s.col_begin),
          .stride = stride,
          .row_bytes = bytes_of_columns(spec.kind, s.cols()),
          .rows = s.rows()};
}

ByteRect scale_rect(const WeightSpec& spec, const Slice& s) {
  if (!spec.is_quantised()) return {};
  const int64_t stride = spec.scale_cols(), group = scale_group_rows(spec.kind), first = s.row_begin / group;
  return {.offset = first * stride + s.col_begin / kScaleBlock,
          .stride = stride,
          .row_bytes = ceil_div(s.cols(), kScaleBlock),
          .rows = ceil_div(s.row_end, group) - first};
}

Result<void> check_slice(const WeightSpec& spec, const Slice& s) {
  if (s.row_begin < 0 || s.row_begin > s.row_end || s.row_end > spec.rows || s.col_begin < 0 ||
      s.col_begin > s.col_end || s.col_end > spec.cols) {
    return fail(Code::kInvalid, "slice rows {}..{}, columns {}..{} of {} lies outside [{}, {}]", s.row_begin, s.row_end,
                s.col_begin, s.col_end, spec.name, spec.rows, spec.cols);
  }
  if (!spec.is_quantised()) return {};
  auto is_border = [](int64_t at, int64_t size, int64_t group) { return at % group == 0 || at == size; };
  const int64_t group = scale_group_rows(spec.kind);
  if (!is_border(s.row_begin, spec.rows, group) || !is_border(s.row_end, spec.rows, group) ||
      !is_border(s.col_begin, spec.cols, kScaleBlock) || !is_border(s.col_end, spec.cols, kScaleBlock)) {
    return fail(Code::kInvalid, "slice rows {}..{}, columns {}..{} of {} cuts a scale group of {} x {}", s.row_begin,
                s.row_end, s.col_begin, s.col_end, spec.name, group, kScaleBlock);
  }
  return {};
}

}  // namespace deepinfer::weights
