// The two regions of the forward pass (replay.md 1, 4).
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/math.h"
#include "device/host_copy.h"
#include "model/indexer.h"
#include "model/model.h"

namespace deepinfer::model {

namespace {

// Rows of recorded steps. Between two tiers the larger one is run; beyond the last, launches cost little beside the
// work.
constexpr int kTiers[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384};

}  // namespace

void Model::forward(const ForwardBatch& batch, const TensorView& logits) {
  if (const int tier = tier_of(batch); tier > 0) return forward_recorded(batch, tier, logits);
  producer(batch);
  consumer(batch, logits);
}

// 0: the step is not one to be recorded.
int Model::tier_of(const ForwardBatch& batch) const {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  if (parts_.device->is_host() || ctx_.is_sharded() || batch.observer != nullptr || !batch.given.empty() ||
      !batch.is_image.empty() || batch.logit_rows.size() != batch.ids.size())
    return 0;
  for (const SequenceRows& s : batch.sequences)
    if (s.keep_from > s.first_pos) return 0;
  const auto* tier = std::lower_bound(std::begin(kTiers), std::end(kTiers), rows);
  if (tier == std::end(kTiers) || *tier > limits_.max_rows) return 0;
  if (*tier == rows) return *tier;
  const bool has_room = batch.padding_slot >= 0 && *tier <= batch.logit_room &&
                        static_cast<int>(batch.sequences.size()) < limits_.max_sequences;
  return has_room ? *tier : 0;
}

void Model::forward_recorded(const ForwardBatch& batch, int tier, const TensorView& logits) {
  const auto rows = static_cast<int>(batch.ids.size());
  padded_sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  padded_ids_.assign(batch.ids.begin(), batch.ids.end());
  padded_ids_.resize(static_cast<size_t>(tier));
  padded_logit_rows_.resize(static_cast<size_t>(tier));
  std::iota(padded_logit_rows_.begin(), padded_logit_rows_.end(), 0);
  if (tier > rows) {
    padding_blocks_.assign(static_cast<size_t>(ceil_div(tier, cache::kBlockPositions)), 0);
    padded_sequences_.push_back({.slot = batch.padding_slot,
                                 .block_table = padding_blocks_.data(),
                                 .num_rows = tier - rows,
                                 .write_floor = std::numeric_limits<int64_t>::max()});
  }
  ForwardBatch padded;
  padded.sequences = padded_sequences_;
  padded.ids = padded_ids_;
  padded.logit_rows = padded_logit_rows_;
  TensorView all_logits = logits;
  all_logits.rows = tier;

  prepare(padded, limits_.max_positions);
  auto it = std::find_if(recorded_.begin(), recorded_.end(),
                         [&](const Recorded& r) { return r.tier == tier && r.logits == logits.data; });
  const bool is_new = it == recorded_.end();
  if (is_new) recorded_.push_back({tier, logits.data, nullptr});
  if (!is_new && it->graph != nullptr) return it->graph->launch(*parts_.stream);
  // The first time the kernels are loaded, which a recording would not allow.
  const bool records = !is_new && parts_.stream->begin_capture();
  produce(padded);
  consumer(padded, all_logits);
  if (!records) return;
  it->graph = parts_.stream->end_capture();
  it->graph->launch(*parts_.stream);
}

// The rows of all three regions.
void Model::split_rows(const ForwardBatch& batch) {
  for (Region* region : {&all_, &kept_, &wanted_}) region->clear();
  logit_ranges_.clear();
  for (int32_t row : batch.logit_rows) append_range(logit_ranges_, {row, 1});
  int32_t row = 0;
  auto logit_row = batch.logit_rows.begin();
  for (const SequenceRows& s : batch.sequences) {
    DI_CHECK(boundary_ >= 0 || s.keep_from <= s.first_pos, "rows dropped in a model without a boundary");
    DI_CHECK(s.num_rows > 0 && s.first_pos >= 0 && s.first_pos + s.num_rows <= limits_.max_positions,
             "{} rows at position {}, {} positions planned", s.num_rows, s.first_pos, limits_.max_positions);
    kernels::Run run{.row_begin = row,
                     .num_rows = s.num_rows,
                     .first_pos = s.first_pos,
                     .slot = s.slot,
                     .block_table = tables_ + static_cast<int64_t>(all_.runs().size()) * table_length(),
                     .window_floor = s.window_floor,
                     .write_floor = s.write_floor};
    all_.append(run, row, 0, batch.is_image);
    run.window_floor = std::max(s.window_floor, s.consumer_floor);
    kept_.append(run, row, static_cast<int32_t>(std::clamp<int64_t>(s.keep_from - s.first_pos, 0, s.num_rows)),
                 batch.is_image);
    logit_row = std::lower_bound(logit_row, batch.logit_rows.end(), row);
    const bool is_wanted = logit_row != batch.logit_rows.end() && *logit_row < row + s.num_rows;
    wanted_.append(run, row, is_wanted ? *logit_row - row : s.num_rows, batch.is_image);
    row += s.num_rows;
  }
  DI_CHECK(row == static_cast<int32_t>(batch.ids.size()), "{} rows of sequences, {} ids", row, batch.ids.size());
  DI_CHECK(static_cast<int>(all_.runs().size()) <= limits_.max_sequences, "{} sequences, {} planned",
           all_.runs().size(), limits_.max_sequences);
}

void Model::producer(const ForwardBatch& batch) {
  prepare(batch, 0);
  produce(batch);
}

// Everything that comes from the host: rows, positions, tables, ids.
void Model::prepare(const ForwardBatch& batch, int64_t recorded_positions) {
  split_rows(batch);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& s = batch.sequences[i];
    if (s.block_table == nullptr) continue;
    parts_.stream->copy(tables_ + static_cast<int64_t>(i) * table_length(), s.block_table,
                        4 * ceil_div(s.first_pos + s.num_rows, cache::kBlockPositions));
  }
  const auto num_rows = static_cast<int64_t>(batch.ids.size());
  for (Region* region : {&all_, &kept_}) {
    region->rows.set_recorded(recorded_positions);
    region->assign(*parts_.stream, *parts_.ops, frequencies_);
  }
  if (may_narrow()) wanted_.assign(*parts_.stream, *parts_.ops, frequencies_);  // never in a recorded step
  if (engram_ != nullptr) engram_->prepare(ctx_, weights_.layers, batch);
  if (has_draft()) draft_.begin(ctx_, frequencies_, tapped_runs());
  streams_.begin(ctx_, num_rows);
  parts_.stream->copy(ids_, batch.ids.data(), num_rows * 4);
}

void Model::produce(const ForwardBatch& batch) {
  const auto num_rows = static_cast<int64_t>(batch.ids.size());
  parts_.ops->embed(*parts_.stream, {.ids = ids_,
                                     .given = batch.given,
                                     .table = weights_.embed,
                                     .row_begin = shards_.vocab.begin,
                                     .streams = streams_.all()});
  parts_.comm->merge(*parts_.stream, streams_.all());
  if (boundary_ < 0) return;

  run_layers(batch, all_.rows, 0, boundary_);
  streams_.flush(ctx_);
  if (is_tapped_by_producer()) {
    tap(boundary_);
    if (has_draft()) draft_.commit(ctx_, weights_.draft, scratch_);
  }
  const BlockWeights& w = weights_.layers[static_cast<size_t>(boundary_)];
  streams_.fold(ctx_, w.attn_norm, head_rows(scratch_.x, num_rows));
  compress(ctx_, w, scratch_, all_.rows, boundary_);
}

void Model::consumer(const ForwardBatch& batch, const TensorView& logits) {
  if (kept_.runs().empty()) {
    DI_CHECK(batch.logit_rows.empty(), "logits of rows that are not kept");
    return;
  }
  streams_.keep(ctx_, kept_.ranges());
  run_layers(batch, kept_.rows, std::max(boundary_, 0), config_.num_hidden_layers);
  if (batch.observer != nullptr) observe(batch, config_.num_hidden_layers);
  if (has_draft() && !is_tapped_by_producer()) draft_.commit(ctx_, weights_.draft, scratch_);
  head(batch, logits);
}

void Model::run_layers(const ForwardBatch& batch, const RowSet& rows, int begin, int end) {
  for (int layer = begin; layer < end; ++layer) {
    const BlockWeights& w = weights_.layers[static_cast<size_t>(layer)];
    if (batch.observer != nullptr) observe(batch, layer);
    if (config_.engram_index(layer) >= 0) engram_->apply(ctx_, w, scratch_, streams_, rows, layer);
    if (layer != boundary_ || !is_tapped_by_producer()) tap(layer);
    if (layer == config_.num_hidden_layers - 1 && may_narrow()) {
      narrow(layer);
      if (streams_.num_rows() > 0)
        run_block(ctx_, w, scratch_, streams_, wanted_.rows, layer, AttentionKind::kBackbone, true);
    } else {
      run_block(ctx_, w, scratch_, streams_, rows, layer, AttentionKind::kBackbone, layer == boundary_);
    }
    if (batch.observer != nullptr && config_.is_index_source(layer)) {
      const bool is_source = layer == config_.candidate_source_layer_id;
      const HostCopy chosen(*parts_.device, *parts_.stream, head_rows(scratch_.chosen, rows.num_rows()));
      const HostCopy candidates(*parts_.device, *parts_.stream,
                                is_source ? head_rows(scratch_.candidates, rows.num_rows()) : TensorView{});
      batch.observer->on_selection(layer, chosen.view(), candidates.view());
    }
  }
}

// The last layer's queries and all behind them concern rows of logits alone; the others only leave their keys. These
// must all be in the window's ring while the rows of logits still read the oldest they see.
bool Model::may_narrow() const {
  const int layer = config_.num_hidden_layers - 1;
  if (layer == boundary_ || wanted_.num_rows() == kept_.num_rows()) return false;
  const kernels::WindowCache window = parts_.states->window(layer);
  return std::all_of(wanted_.runs().begin(), wanted_.runs().end(),
                     [&](const kernels::Run& run) { return run.num_rows + window.window - 1 <= window.ring; });
}

void Model::narrow(int layer) {
  const BlockWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const TensorView x = head_rows(scratch_.x, kept_.num_rows());
  streams_.fold(ctx_, w.attn_norm, x);
  if (!w.compressor_kv.empty()) compress(ctx_, w, scratch_, kept_.rows, layer);
  store_window_keys(ctx_, w, scratch_, kept_.rows, x, layer);
  ranges_.clear();
  append_within(kept_.ranges(), wanted_.ranges(), ranges_);
  streams_.keep(ctx_, ranges_);
  for (const TensorView& selection : {scratch_.chosen, scratch_.candidates})  // of an earlier layer's
    if (!selection.empty()) compact_rows(ctx_.stream(), selection, ranges_);
}

// Draft targets lie on one side of the boundary, its own input counting on either (truncation_obstacle).
bool Model::is_tapped_by_producer() const {
  const auto& targets = config_.dspark_target_layer_ids;
  return boundary_ >= 0 && !targets.empty() && targets.front() < boundary_;
}

void Model::tap(int layer) {
  const auto& targets = config_.dspark_target_layer_ids;
  const auto it = std::find(targets.begin(), targets.end(), layer);
  if (it == targets.end() || !has_draft()) return;
  streams_.flush(ctx_);
  draft_.tap(ctx_, streams_, static_cast<int>(it - targets.begin()));
}

void Model::observe(const ForwardBatch& batch, int layer) {
  streams_.flush(ctx_);
  const HostCopy streams(*parts_.device, *parts_.stream, streams_.all());
  const HostCopy pre(*parts_.device, *parts_.stream, streams_.pre());
  batch.observer->on_streams(layer, streams.view(), pre.view());
}

void Model::head(const ForwardBatch& batch, const TensorView& logits) {
  const auto num_rows = static_cast<int64_t>(batch.logit_rows.size());
  if (num_rows == 0) return;
  parts_.ops->prefetch(*parts_.stream, weights_.head);
  ranges_.clear();
  append_within(streams_.num_rows() == kept_.num_rows() ? kept_.ranges() : wanted_.ranges(), logit_ranges_, ranges_);
  if (num_rows < streams_.num_rows()) {
    streams_.flush(ctx_);
    streams_.keep(ctx_, ranges_);
  }
  const TensorView x = head_rows(scratch_.x, num_rows);
  streams_.fold(ctx_, weights_.norm, x);
  ctx_.sharded_linear(x, weights_.head, logits, shards_.vocab, shards_.vocab_bounds, true);
}

void Model::propose(std::span<const DraftSequence> sequences, const Picker& pick, const DraftOutput& out) {
  draft_.propose(ctx_, weights_, frequencies_, scratch_, streams_, sequences, pick, out);
}

}  // namespace deepinfer::model
