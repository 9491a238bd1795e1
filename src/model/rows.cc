#include "model/rows.h"

#include "base/check.h"

namespace deepinfer::model {

void append_range(std::vector<RowRange>& ranges, RowRange range) {
  if (range.count == 0) return;
  if (!ranges.empty() && ranges.back().begin + ranges.back().count == range.begin)
    ranges.back().count += range.count;
  else
    ranges.push_back(range);
}

void append_within(std::span<const RowRange> outer, std::span<const RowRange> inner, std::vector<RowRange>& ranges) {
  int32_t before = 0;  // rows in the outer ranges before
  size_t i = 0;
  for (const RowRange& range : inner) {
    while (i < outer.size() && range.begin >= outer[i].begin + outer[i].count) before += outer[i++].count;
    DI_CHECK(i < outer.size() && range.begin >= outer[i].begin &&
                 range.begin + range.count <= outer[i].begin + outer[i].count,
             "rows {} to {} were dropped", range.begin, range.begin + range.count - 1);
    append_range(ranges, {before + range.begin - outer[i].begin, range.count});
  }
}

void compact_rows(Stream& stream, const TensorView& view, std::span<const RowRange> ranges) {
  int64_t to = 0;
  for (const RowRange& range : ranges) {
    if (range.begin == to) {
      to += range.count;
      continue;
    }
    // Row by row in ascending order: source and target of a whole range may overlap, those of a row never do.
    for (int64_t row = range.begin; row < range.begin + range.count; ++row, ++to)
      stream.copy(view.row_range(to, 1).data, view.row_range(row, 1).data, view.row_bytes());
  }
}

void RowSet::plan(Arena& arena, const ModelConfig& config, int64_t max_rows, int max_runs) {
  max_rows_ = max_rows;
  for (int kind = 0; kind < 2; ++kind) {
    cos_[kind] = arena.matrix(DType::kF32, max_rows, config.qk_rope_head_dim / 2);
    sin_[kind] = arena.matrix(DType::kF32, max_rows, config.qk_rope_head_dim / 2);
  }
  positions_ = arena.array<int64_t>(max_rows);
  run_of_row_ = arena.array<int32_t>(max_rows);
  is_image_ = arena.array<uint8_t>(max_rows);
  device_runs_ = arena.array<kernels::Run>(max_runs);
  for (int ratio = 1; ratio <= 2; ++ratio) {
    group_of_row_[ratio - 1] = arena.array<int32_t>(max_rows);
    host_group_of_row_[ratio - 1].reserve(static_cast<size_t>(max_rows));
  }
  host_positions_.reserve(static_cast<size_t>(max_rows));
  host_run_of_row_.reserve(static_cast<size_t>(max_rows));
  runs_.reserve(static_cast<size_t>(max_runs));
  for (auto& groups : groups_) groups.reserve(static_cast<size_t>(max_runs));
}

void RowSet::assign(Stream& stream, kernels::Ops& ops, const Frequencies& frequencies,
                    std::span<const kernels::Run> runs, std::span<const uint8_t> is_image) {
  frequencies_ = &frequencies;
  runs_.assign(runs.begin(), runs.end());
  host_positions_.clear();
  host_run_of_row_.clear();
  for (int ratio = 1; ratio <= 2; ++ratio)
    groups_[ratio - 1].clear(), host_group_of_row_[ratio - 1].clear(), num_groups_[ratio - 1] = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const kernels::Run& run = runs[i];
    DI_CHECK(run.row_begin == static_cast<int32_t>(host_positions_.size()), "run {} begins at row {}", i,
             run.row_begin);
    for (int64_t k = 0; k < run.num_rows; ++k) {
      host_positions_.push_back(run.first_pos + k);
      host_run_of_row_.push_back(static_cast<int32_t>(i));
    }
    for (int ratio = 1; ratio <= 2; ++ratio) {
      int64_t first = run.first_pos / ratio, end = (run.first_pos + run.num_rows) / ratio;
      int& count = num_groups_[ratio - 1];
      if (end > first)
        groups_[ratio - 1].push_back({count, static_cast<int32_t>(end - first), first, static_cast<int32_t>(i)});
      for (int64_t pos = run.first_pos; pos < run.first_pos + run.num_rows; ++pos) {
        const bool completes = (pos + 1) % ratio == 0;
        host_group_of_row_[ratio - 1].push_back(completes ? static_cast<int32_t>(count + pos / ratio - first) : -1);
      }
      count += static_cast<int>(end - first);
    }
  }
  auto rows = static_cast<int64_t>(host_positions_.size());
  if (max_positions_ > 0) num_groups_[0] = num_groups_[1] = static_cast<int>(rows);
  DI_CHECK(rows <= max_rows_, "{} rows in a pass, {} planned", rows, max_rows_);
  batch_ = {.num_rows = static_cast<int>(rows),
            .runs = runs_,
            .positions = positions_,
            .run_of_row = run_of_row_,
            .is_image = is_image.empty() ? nullptr : is_image_,
            .device_runs = device_runs_};
  plain_ = {cos_[0].row_range(0, rows), sin_[0].row_range(0, rows)};
  compressed_ = {cos_[1].row_range(0, rows), sin_[1].row_range(0, rows)};
  if (rows == 0) return;
  stream.copy(positions_, host_positions_.data(), rows * 8);
  stream.copy(run_of_row_, host_run_of_row_.data(), rows * 4);
  stream.copy(device_runs_, runs_.data(), static_cast<int64_t>(runs_.size() * sizeof(kernels::Run)));
  for (int ratio = 1; ratio <= 2; ++ratio)
    stream.copy(group_of_row_[ratio - 1], host_group_of_row_[ratio - 1].data(), rows * 4);
  if (!is_image.empty()) stream.copy(is_image_, is_image.data(), rows);
  ops.rope(stream, {.positions = positions_, .freq = frequencies.plain, .cos = plain_.cos, .sin = plain_.sin});
  ops.rope(stream,
           {.positions = positions_, .freq = frequencies.compressed, .cos = compressed_.cos, .sin = compressed_.sin});
}

void Region::plan(Arena& arena, const ModelConfig& config, int64_t max_rows, int max_runs) {
  rows.plan(arena, config, max_rows, max_runs);
  runs_.reserve(static_cast<size_t>(max_runs));
  ranges_.reserve(static_cast<size_t>(max_rows));
  images_.reserve(static_cast<size_t>(max_rows));
}

void Region::clear() {
  runs_.clear();
  ranges_.clear();
  images_.clear();
}

void Region::append(kernels::Run run, int32_t row, int32_t dropped, std::span<const uint8_t> batch_is_image) {
  if (dropped >= run.num_rows) return;
  if (!batch_is_image.empty()) {
    const auto* first = batch_is_image.data() + row;
    images_.insert(images_.end(), first + dropped, first + run.num_rows);
  }
  run.row_begin = num_rows();
  run.num_rows -= dropped;
  run.first_pos += dropped;
  runs_.push_back(run);
  append_range(ranges_, {row + dropped, run.num_rows});
}

}  // namespace deepinfer::model
