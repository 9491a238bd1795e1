// Keys of attention: which ones a row sees, and their cache records (model.md 6.3) as floats.
//
// Codes times scales are exact in fp32.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

// Window keys of one row: positions [begin, end). Chosen entries: the first num_chosen of `chosen`, from lowest to
// highest.
struct RowKeys {
  int64_t begin, end;
  const int32_t* chosen;
  int64_t num_chosen;
  int32_t lowest, highest;

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
  keys.lowest = keys.highest = keys.chosen[0];
  for (; keys.num_chosen < p.chosen.cols && keys.chosen[keys.num_chosen] >= 0; ++keys.num_chosen) {  // then -1
    const int32_t entry = keys.chosen[keys.num_chosen];
    keys.lowest = entry < keys.lowest ? entry : keys.lowest;
    keys.highest = entry > keys.highest ? entry : keys.highest;
  }
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

DI_INLINE void decode_window(const uint8_t* record, int64_t dim, float* out) {
  for (int64_t c = 0; c < dim; c += 32) {
    const VF scale = ue8m0_value<0>(seti(record[dim + c / 32]));
    store(out + c, mul(load_e4m3(record + c), scale));
    store(out + c + 16, mul(load_e4m3(record + c + 16), scale));
  }
}

constexpr int64_t kMaxScales = 256;  // of an entry: head_dim <= 4096
DI_INLINE void decode_entry(const uint8_t* record, int64_t dim, float* out) {
  const int64_t n = dim / 16;
  alignas(64) float scales[kMaxScales + 16];
  // Sixteen scales at a time from the end of the record, so that nothing behind it is read; what comes before the
  // first scale are codes, and lands in front of the first place.
  for (int64_t end = n; end > 0; end -= 16) store(scales + end, load_e4m3(record + dim / 2 + end - 16));
  for (int64_t g = 0; g < n; ++g)
    store(out + 16 * g, mul(e2m1_of_low_bits(load_nibbles(record + 8 * g)), set(scales[16 + g])));
}

// Entries that a thread has decoded: neighbouring rows choose mostly the same ones. A row whose choices lie close
// together finds entry e in slot e, any other its choice j in slot j, both modulo the number of slots.
struct DecodedEntries {
  float* keys;             // [slots][dim]
  int32_t* entry_of_slot;  // [slots], or -1
  int32_t* run_of_slots;   // whose entries they are, or -1
  int64_t slots;           // a power of two

  DI_INLINE void start(int32_t run) const {
    if (*run_of_slots == run) return;
    *run_of_slots = run;
    for (int64_t s = 0; s < slots; ++s) entry_of_slot[s] = -1;
  }
  // Pointers to choices first .. first + count - 1 of a row, count <= slots; good until the next call.
  DI_INLINE void find(const AttentionParams& p, const Run& run, const RowKeys& row, int64_t first, int64_t count,
                      const float** out) const {
    const bool is_close = row.highest - row.lowest < slots;
    for (int64_t j = first; j < first + count; ++j) {
      const int32_t entry = row.chosen[j];
      const int64_t slot = (is_close ? entry : j) & (slots - 1);
      float* key = keys + slot * p.head_dim;
      if (entry_of_slot[slot] != entry) decode_entry(entry_record(p, run, entry), p.head_dim, key);
      entry_of_slot[slot] = entry;
      out[j - first] = key;
    }
  }
};

}  // namespace
}  // namespace deepinfer::kernels::cpu
