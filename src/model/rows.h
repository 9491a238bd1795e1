// The rows that a region works on, as the kernels see them: batch, positions, rotations, finished groups. What a
// device's kernels read lies in its memory.
//
// Made anew for every pass from the runs; memory is planned once for the largest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "tensor/arena.h"
#include "weights/config.h"

namespace deepinfer::model {

struct RowRange {
  int32_t begin = 0, count = 0;
};
// Appends a range, joining it to the last one if it continues it.
void append_range(std::vector<RowRange>& ranges, RowRange range);
// Appends the rows of `inner` in the numbering of `outer`, which holds them; both ascending.
void append_within(std::span<const RowRange> outer, std::span<const RowRange> inner, std::vector<RowRange>& ranges);
// Moves the rows of `ranges` (ascending) to the front of the view, in place.
void compact_rows(Stream& stream, const TensorView& view, std::span<const RowRange> ranges);

// Frequencies of both kinds, and what a rank derives once from the configuration.
struct Frequencies {
  std::vector<float> plain, compressed;
};

class RowSet {
 public:
  // Memory for up to max_rows rows of max_runs runs.
  void plan(Arena& arena, const ModelConfig& config, int64_t max_rows, int max_runs);

  // For work that is recorded and repeated with other positions: none ever reaches `max_positions`, and every row may
  // complete a group. 0: the pass runs once.
  void set_recorded(int64_t max_positions) { max_positions_ = max_positions; }
  int64_t max_positions() const { return max_positions_; }

  // Sets rows and rotations. Block tables of the runs are device memory. `is_image`: per row, empty for all text.
  // `frequencies` must outlive the pass.
  void assign(Stream& stream, kernels::Ops& ops, const Frequencies& frequencies, std::span<const kernels::Run> runs,
              std::span<const uint8_t> is_image);

  int num_rows() const { return batch_.num_rows; }
  const kernels::Batch& batch() const { return batch_; }
  const kernels::Rope& rope(bool compressed) const { return compressed ? compressed_ : plain_; }
  std::span<const kernels::GroupRun> groups(int ratio) const { return groups_[static_cast<size_t>(ratio - 1)]; }
  // [T] on the device: the group row that a row completes, or -1.
  const int32_t* group_of_row(int ratio) const { return group_of_row_[ratio - 1]; }
  const Frequencies& frequencies() const { return *frequencies_; }
  int num_groups(int ratio) const { return num_groups_[static_cast<size_t>(ratio - 1)]; }

 private:
  int64_t max_rows_ = 0, max_positions_ = 0;
  const Frequencies* frequencies_ = nullptr;
  TensorView cos_[2], sin_[2];    // planned, [max_rows, R / 2]
  int64_t* positions_ = nullptr;  // device
  int32_t* run_of_row_ = nullptr;
  uint8_t* is_image_ = nullptr;
  kernels::Run* device_runs_ = nullptr;
  int32_t* group_of_row_[2] = {};
  std::vector<int64_t> host_positions_;
  std::vector<int32_t> host_run_of_row_, host_group_of_row_[2];
  std::vector<kernels::Run> runs_;
  std::vector<kernels::GroupRun> groups_[2];
  int num_groups_[2] = {0, 0};
  kernels::Batch batch_;
  kernels::Rope plain_, compressed_;
};

// Those of a batch's rows that a part of the network works on: ranges in the batch's numbering, and a row set.
class Region {
 public:
  void plan(Arena& arena, const ModelConfig& config, int64_t max_rows, int max_runs);

  void clear();
  // The run that begins at row `row` of the batch, without its first `dropped` rows.
  void append(kernels::Run run, int32_t row, int32_t dropped, std::span<const uint8_t> batch_is_image);
  // After the last append: makes the row set.
  void assign(Stream& stream, kernels::Ops& ops, const Frequencies& frequencies) {
    rows.assign(stream, ops, frequencies, runs_, images_);
  }

  RowSet rows;
  std::span<const kernels::Run> runs() const { return runs_; }
  std::span<const RowRange> ranges() const { return ranges_; }
  int32_t num_rows() const { return runs_.empty() ? 0 : runs_.back().row_begin + runs_.back().num_rows; }

 private:
  std::vector<kernels::Run> runs_;
  std::vector<RowRange> ranges_;
  std::vector<uint8_t> images_;
};

}  // namespace deepinfer::model
