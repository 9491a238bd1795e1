// Private state slots, one a running sequence: everything a sequence needs to go on besides its blocks
// (serving.md 2.2).
//
//   windows   every layer and draft stage: a ring of window + backtracking records; position p at p mod ring
//   tails     every ratio-2 source: K and G rows (fp32) of the last positions, for the open group
//   Storage: per layer [num_slots][ring] records, per tail [num_slots][tail ring][2][head_dim].
//
// backtracking: positions that may be taken back after a step (rejected drafts), draft block + 1.
// Slots are numbered from 0; who holds which is decided elsewhere. Owned by the thread that owns the stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/packed.h"
#include "device/device.h"
#include "kernels/ops.h"
#include "weights/config.h"

namespace deepinfer::cache {

// Sizes of one slot, from the configuration alone; printed at start.
struct StatePlan {
  kernels::RecordFormat format = kernels::RecordFormat::kPacked;
  int window = 0, backtracking = 0;
  int num_layers = 0, num_drafts = 0, boundary = -1;  // layers below the boundary are the producer half
  int head_dim = 0;
  std::vector<int> tail_layers;  // ratio-2 sources

  // Backtracking below 0: the draft block + 1.
  static StatePlan make(const ModelConfig& config, kernels::RecordFormat format, int backtracking = -1);
  int ring() const { return window + backtracking; }
  int tail_ring() const { return backtracking + 1; }
  int num_windows() const { return num_layers + num_drafts; }
  int64_t window_bytes() const { return ring() * kernels::window_record_bytes(format, head_dim); }
  int64_t tail_bytes() const { return int64_t{tail_ring()} * 2 * head_dim * 4; }
  int64_t slot_bytes() const;
  std::string description() const;  // "state slot 3128352 B: 40 windows of ..., 3 tails of ..., 3 draft windows of ..."
};

class StatePool {
 public:
  static Result<StatePool> create(Device& device, const StatePlan& plan, int num_slots);

  const StatePlan& plan() const { return plan_; }
  int num_slots() const { return num_slots_; }
  int64_t bytes() const { return memory_.bytes(); }
  // Layer id, or num_hidden_layers + draft stage.
  kernels::WindowCache window(int layer) const;
  kernels::TailCache tail(int layer) const;

  // To be called when a slot is handed to a new sequence: debug builds fill it with NaN patterns.
  void hand_out(Stream& stream, int32_t slot);
  void copy_slot(Stream& stream, int32_t to, int32_t from);

  // The packed form of the state after the committed positions [0, header.end_pos): the last `window` records of every
  // layer down to its floor, and the open groups. Kind and format of `header` are filled in. Waits for the stream.
  std::vector<std::byte> export_state(Stream& stream, int32_t slot, PackedHeader header) const;
  // Fills a slot. kCorrupt or kInvalid if the view is not a state of this plan; the slot is then unspecified.
  Result<void> import_state(Stream& stream, int32_t slot, const PackedView& view);

 private:
  // Calls f(spec, first position, source or target of one record at a time) for every component in order.
  template <typename F>
  void components(const PackedHeader& header, F&& f) const;

  StatePlan plan_;
  int num_slots_ = 0;
  DeviceBuffer memory_;
};

}  // namespace deepinfer::cache
