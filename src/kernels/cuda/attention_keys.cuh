// The keys of a row by number: window ascending, then chosen entries ascending (model.md 3.5). All threads of a block
// make one together.
#pragma once

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {

struct RowKeys {
  const AttentionArgs& s;
  const Run& run;
  const int32_t* chosen;
  int64_t first_pos;
  int first_place;  // of the first window key in the ring
  int num_window, count;

  __device__ RowKeys(const AttentionArgs& source, int64_t t) : s(source), run(source.runs[source.run_of_row[t]]) {
    const int64_t pos = s.positions[t], window = s.window.window;
    const int64_t end = s.block_mask ? run.first_pos + run.num_rows : pos + 1;
    const int64_t oldest = s.block_mask ? run.first_pos - window : pos - window + 1;
    first_pos = max(max(oldest, run.window_floor), int64_t{0});
    num_window = static_cast<int>(max(end - first_pos, int64_t{0}));
    chosen = s.num_chosen > 0 ? s.chosen.row(t) : nullptr;
    first_place = static_cast<int>(first_pos % s.window.ring);
    count = num_window;  // chosen entries come first, -1 fills the rest
    for (int i = 0; i < s.num_chosen; i += static_cast<int>(blockDim.x)) {
      const int at = i + static_cast<int>(threadIdx.x);
      count += __syncthreads_count(at < s.num_chosen && chosen[at] >= 0);
    }
  }
  __device__ const uint8_t* window_key(int k) const {
    const int64_t size = window_record_size(s.window.head_dim), pos = first_pos + k;
    if (pos >= run.first_pos) return s.records + (run.row_begin + pos - run.first_pos) * size;
    const int place = first_place + k, ring = s.window.ring;  // fewer than `ring` keys are kept
    return reinterpret_cast<const uint8_t*>(s.window.data) +
           (static_cast<int64_t>(run.slot) * ring + (place < ring ? place : place - ring)) * size;
  }
  __device__ const uint8_t* entry(int k) const {
    return entry_record(s.global, run.block_table, static_cast<uint32_t>(chosen[k - num_window]));
  }
  // Channel c of key k.
  __device__ float value(int k, int c) const {
    if (k < num_window) {
      const uint8_t* record = window_key(k);
      return e4m3_value(record[c]) * ue8m0_value(record[s.window.head_dim + c / 32]);
    }
    const uint8_t* record = entry(k);
    const int dim = s.global.head_dim;
    return e2m1_value(record[c / 2] >> c % 2 * 4) * e4m3_value(record[dim / 2 + c / 16]);
  }
};

}  // namespace deepinfer::kernels::cuda
