// Keys of attention: which ones a row sees, and their cache records (model.md 6.3) as floats in two layouts:
//
//   across  [dim][stride]  sixteen keys a vector, for scores
//   along   [key][dim]     sixteen channels a vector, for the sum of values
//
// Codes times scales are exact in fp32, so both layouts hold the same numbers.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

enum class Record : uint8_t { kWindow, kEntry };

// Window keys of one row: positions [begin, end). Chosen entries: the first num_chosen of `chosen`.
struct RowKeys {
  int64_t begin, end;
  const int32_t* chosen;
  int64_t num_chosen;

  DI_INLINE int64_t num_window() const { return end - begin; }
  DI_INLINE int64_t count() const { return num_window() + num_chosen; }
};

DI_INLINE RowKeys keys_of_row(const AttentionParams& p, const Run& run, int64_t t) {
  const int64_t pos = p.batch->positions[t], window = p.window.window;
  RowKeys keys{};
  keys.begin = p.block_mask ? run.first_pos - window : pos - window + 1;
  keys.end = p.block_mask ? run.first_pos + run.num_rows : pos + 1;
  if (keys.begin < run.window_floor) keys.begin = run.window_floor;
  if (keys.begin < 0) keys.begin = 0;
  if (keys.begin > keys.end) keys.begin = keys.end;
  if (p.chosen.empty()) return keys;
  keys.chosen = p.chosen.row<int32_t>(t);
  while (keys.num_chosen < p.chosen.cols && keys.chosen[keys.num_chosen] >= 0) ++keys.num_chosen;  // then -1
  return keys;
}

DI_INLINE const uint8_t* window_record(const AttentionParams& p, const Run& run, int64_t pos) {
  const int64_t bytes = p.head_dim + p.head_dim / 32;
  return reinterpret_cast<const uint8_t*>(pos >= run.first_pos
                                              ? p.records + (run.row_begin + pos - run.first_pos) * bytes
                                              : p.window.record(run.slot, pos));
}
DI_INLINE const uint8_t* entry_record(const AttentionParams& p, const Run& run, int64_t entry) {
  const int64_t per_block = p.global.entries_per_block();
  return reinterpret_cast<const uint8_t*>(p.global.main +
                                          run.block_table[entry / per_block] * p.global.main_block_bytes +
                                          entry % per_block * (p.head_dim / 2 + p.head_dim / 16));
}

// ---- along channels ----------------------------------------------------------------------------------------------

DI_INLINE void decode_window_along(const uint8_t* record, int64_t dim, float* out) {
  for (int64_t c = 0; c < dim; c += 32) {
    const VF scale = ue8m0_value<0>(seti(record[dim + c / 32]));
    store(out + c, mul(load_e4m3(record + c), scale));
    store(out + c + 16, mul(load_e4m3(record + c + 16), scale));
  }
}

constexpr int64_t kMaxScales = 256;  // of an entry: head_dim <= 4096
DI_INLINE void decode_entry_along(const uint8_t* record, int64_t dim, float* out) {
  const int64_t n = dim / 16;
  alignas(64) float scales[kMaxScales + 16];
  // Sixteen scales at a time from the end of the record, so that nothing behind it is read; what comes before the
  // first scale are codes, and lands in front of the first place.
  for (int64_t end = n; end > 0; end -= 16) store(scales + end, load_e4m3(record + dim / 2 + end - 16));
  for (int64_t g = 0; g < n; ++g)
    store(out + 16 * g, mul(e2m1_of_low_bits(load_nibbles(record + 8 * g)), set(scales[16 + g])));
}

// ---- across keys -------------------------------------------------------------------------------------------------

// Byte `at` of sixteen records.
DI_INLINE VI byte_of_records(const uint8_t* const* records, int64_t at) {
  alignas(64) int32_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = records[i][at];
  return loadi(bytes);
}
// Bytes [at, at + 16) of sixteen records: out[i], lane r = four bytes of record r.
DI_INLINE void transpose_records(const uint8_t* const* records, int64_t at, VI* out) {
  const uint8_t* rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = records[i] + at;
  transpose_16x16(rows, out);
}

DI_INLINE void decode_window_across(const uint8_t* const* records, int64_t dim, float* out, int64_t stride) {
  for (int64_t c = 0; c < dim; c += 16) {
    const VF scale = ue8m0_value<0>(byte_of_records(records, dim + c / 32));
    VI v[4];
    transpose_records(records, c, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* to = out + (c + 4 * i) * stride;
      store(to, mul(e4m3_value<0>(v[i]), scale));
      store(to + stride, mul(e4m3_value<1>(v[i]), scale));
      store(to + 2 * stride, mul(e4m3_value<2>(v[i]), scale));
      store(to + 3 * stride, mul(e4m3_value<3>(v[i]), scale));
    }
  }
}

DI_INLINE void decode_entry_across(const uint8_t* const* records, int64_t dim, float* out, int64_t stride) {
  const int64_t n = dim / 16;
  alignas(64) float scales[(kMaxScales + 16) * 16];  // as in decode_entry_along, sixteen records a scale
  for (int64_t end = n; end > 0; end -= 16) {
    VI v[4];
    transpose_records(records, dim / 2 + end - 16, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* to = scales + (end + 4 * i) * 16;
      store(to, e4m3_value<0>(v[i]));
      store(to + 16, e4m3_value<1>(v[i]));
      store(to + 32, e4m3_value<2>(v[i]));
      store(to + 48, e4m3_value<3>(v[i]));
    }
  }
  for (int64_t c = 0; c < dim; c += 32) {
    VI v[4];
    transpose_records(records, c / 2, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const VF scale = load(scales + (16 + c / 16 + i / 2) * 16);
      float* to = out + (c + 8 * i) * stride;
      VI codes = v[i];
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k, codes = srli<4>(codes)) store(to + k * stride, mul(e2m1_of_low_bits(codes), scale));
    }
  }
}

// ---- a segment of keys -------------------------------------------------------------------------------------------

// Keys 0 .. count - 1, whose records `record_of` gives; the last vector is filled up with repetitions of the last key.
template <Record kRecord, typename F>
DI_INLINE void decode_across(int64_t count, int64_t dim, F&& record_of, float* out, int64_t stride) {
  for (int64_t k = 0; k < count; k += 16) {
    const uint8_t* records[16];
    for (int64_t i = 0; i < 16; ++i) records[i] = record_of(k + i < count ? k + i : count - 1);
    if constexpr (kRecord == Record::kWindow) decode_window_across(records, dim, out + k, stride);
    if constexpr (kRecord == Record::kEntry) decode_entry_across(records, dim, out + k, stride);
  }
}
template <Record kRecord, typename F>
DI_INLINE void decode_along(int64_t count, int64_t dim, F&& record_of, float* out) {
  for (int64_t k = 0; k < count; ++k) {
    if constexpr (kRecord == Record::kWindow) decode_window_along(record_of(k), dim, out + k * dim);
    if constexpr (kRecord == Record::kEntry) decode_entry_along(record_of(k), dim, out + k * dim);
  }
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
