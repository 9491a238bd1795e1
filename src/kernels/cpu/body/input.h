// Rows of activations as the products read them, in groups of 32 columns:
//
//   f32    as given, padded with zeros to whole groups
//   int8   x = scale * q, q = round(x * 127 / max), beside FP4 weights; in each 8 columns the even ones first
//   int16  the same with 2047, beside FP8 weights; in each 4 columns the order 0, 2, 1, 3
//
// The orders are those in which a lane of decoded weights holds its columns (product.h).
#pragma once

#include "kernels/cpu/body/declare.h"

namespace deepinfer::kernels::cpu {
namespace {

DI_INLINE Path path_of(Weight::Kind kind) {
  return kind == Weight::Kind::kFp4 ? Path::kInt8 : kind == Weight::Kind::kFp8 ? Path::kInt16 : Path::kF32;
}

DI_INLINE float group_max(const float* x) {
  return reduce_max(vmax(vabs(load(x)), vabs(load(x + 16))));
}

DI_INLINE void pack_int8(const float* x, int64_t groups, int8_t* q, float* scales, int32_t* offsets) {
  for (int64_t g = 0; g < groups; ++g, x += 32, q += 32) {
    const float top = group_max(x);
    const VF inverse = set(top > 0 ? static_cast<float>(kInt8Limit) / top : 0.f);
    const VI a = to_int(mul(load(x), inverse)), b = to_int(mul(load(x + 16), inverse));
    store_s8_even_odd(q, a);
    store_s8_even_odd(q + 16, b);
    scales[g] = top * (0.5f / kInt8Limit);  // FP4 codes are doubled
    offsets[g] = -12 * reducei(addi(a, b));
  }
}
DI_INLINE void pack_int16(const float* x, int64_t groups, int16_t* q, float* scales) {
  for (int64_t g = 0; g < groups; ++g, x += 32, q += 32) {
    const float top = group_max(x);
    const VF inverse = set(top > 0 ? static_cast<float>(kInt16Limit) / top : 0.f);
    store_s16_even_odd(q, to_int(mul(load(x), inverse)));
    store_s16_even_odd(q + 16, to_int(mul(load(x + 16), inverse)));
    scales[g] = top * (kFp8Unit / kInt16Limit);
  }
}

// The packed forms of one matrix x [T, cols]: what its products need, made once.
struct PackedInput {
  Input plain, int8, int16;
  int64_t rows = 0, cols = 0;

  DI_INLINE const Input& of(Weight::Kind kind) const {
    const Path path = path_of(kind);
    return path == Path::kInt8 ? int8 : path == Path::kInt16 ? int16 : plain;
  }
};

struct InputNeeds {
  bool plain = false, int8 = false, int16 = false;
  DI_INLINE void add(Weight::Kind kind) {
    const Path path = path_of(kind);
    (path == Path::kInt8 ? int8 : path == Path::kInt16 ? int16 : plain) = true;
  }
};

DI_INLINE Input take_input(Scratch& scratch, Path path, int64_t rows, int64_t groups) {
  Input in;
  in.path = path;
  in.groups = groups;
  in.row_bytes = groups * (path == Path::kInt8 ? 32 : path == Path::kInt16 ? 64 : 128);
  in.data = static_cast<std::byte*>(scratch.take(rows * in.row_bytes));
  if (path != Path::kF32) in.scales = static_cast<float*>(scratch.take(rows * groups * 4));
  if (path == Path::kInt8) in.offsets = static_cast<int32_t*>(scratch.take(rows * groups * 4));
  return in;
}

// Writes x [cols], a multiple of 32, as row t of `in`.
DI_INLINE void pack_row(const float* x, const Input& in, int64_t t, int64_t first_group, int64_t groups) {
  std::byte* data = const_cast<std::byte*>(in.data) + t * in.row_bytes;
  float* scales = const_cast<float*>(in.scales) + t * in.groups + first_group;
  if (in.path == Path::kInt8) {
    pack_int8(x, groups, reinterpret_cast<int8_t*>(data) + 32 * first_group, scales,
              const_cast<int32_t*>(in.offsets) + t * in.groups + first_group);
  } else {
    pack_int16(x, groups, reinterpret_cast<int16_t*>(data) + 32 * first_group, scales);
  }
}

// Below this many elements one thread is faster than waking the others.
constexpr int64_t kSerialElements = 16384;

// Calls f(begin, end) for ranges that make up [0, rows); none of them is empty.
template <typename F>
DI_INLINE void for_rows(const Context& ctx, int64_t rows, int64_t elements_per_row, F&& f) {
  if (rows * elements_per_row > kSerialElements) {
    ctx.pool.split(rows, 1, f);
  } else if (rows > 0) {
    f(int64_t{0}, rows);
  }
}

inline PackedInput pack_input(const Context& ctx, Scratch& scratch, const TensorView& x, InputNeeds needs) {
  PackedInput packed;
  packed.rows = x.rows;
  packed.cols = x.cols;
  const int64_t groups = (x.cols + 31) / 32;
  const bool whole = x.cols % 32 == 0;
  if (needs.plain && whole) {
    packed.plain.data = static_cast<const std::byte*>(x.data);
    packed.plain.row_bytes = x.stride * 4;
    packed.plain.groups = groups;
  } else if (needs.plain) {
    packed.plain = take_input(scratch, Path::kF32, x.rows, groups);
  }
  if (needs.int8) packed.int8 = take_input(scratch, Path::kInt8, x.rows, groups);
  if (needs.int16) packed.int16 = take_input(scratch, Path::kInt16, x.rows, groups);
  if (!needs.int8 && !needs.int16 && (whole || !needs.plain)) return packed;

  for_rows(ctx, x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = x.f32(t);
      if (needs.plain && !whole) {
        float* to = reinterpret_cast<float*>(const_cast<std::byte*>(packed.plain.data) + t * packed.plain.row_bytes);
        for (int64_t c = 0; c < 32 * groups; ++c) to[c] = c < x.cols ? row[c] : 0.f;
      }
      if (needs.int8) pack_row(row, packed.int8, t, 0, groups);
      if (needs.int16) pack_row(row, packed.int16, t, 0, groups);
    }
  });
  return packed;
}

// Weight rows are handed out in units: small enough to spread over the threads, at most a block. With many rows of x a
// whole block is worth an uneven share: its tiles are twice as fast.
DI_INLINE int64_t unit_rows(int64_t total_rows, int64_t num_tokens, int threads) {
  const int64_t blocks_a_thread = num_tokens > kFewTokens ? 1 : 4;
  return total_rows >= kBlockRows * blocks_a_thread * threads ? kBlockRows
         : total_rows >= int64_t{32} * threads                ? 32
                                                              : 16;
}
// Where those units are few, many rows of x are cut as well, into pieces of whole tiles. And where all the codes are
// fewer bytes than the rows, which then are better read again: a thread's piece of rows is in its cache, in the next
// kernel too.
DI_INLINE int64_t unit_tokens(int64_t num_units, int64_t num_tokens, int threads, int64_t code_bytes,
                              int64_t token_bytes) {
  constexpr int64_t kTiles = 24;
  int64_t pieces = (4 * threads + num_units - 1) / num_units;
  if (num_tokens <= kFewTokens || threads == 1) return num_tokens;
  if (code_bytes < num_tokens * token_bytes / threads && pieces < threads) pieces = threads;
  return ((num_tokens + pieces - 1) / pieces + kTiles - 1) / kTiles * kTiles;
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
