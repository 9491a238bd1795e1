// The draft module (model.md 5): committed tokens feed its windows from the backbone's features; a block of tokens is
// proposed in one pass and made consistent by the Markov head.
//
//   commit   features of the last rows of each run (what the ring can hold) -> main_proj, norm -> window keys of each
//            stage. Rows that verification rejects later need no undoing: the same positions are committed again before
//            anything reads them.
//   propose  [anchor, noise, ...] at positions last + 1 ..: stages, head, then one Markov step a draft.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/block.h"

namespace deepinfer::model {

class Draft {
 public:
  explicit Draft(const ModelConfig& config) : config_(config) {}

  void plan(Arena& arena, const Limits& limits, DType activation);

  // Chooses the rows to commit among those of `runs`.
  void begin(const Context& ctx, const Frequencies& frequencies, std::span<const kernels::Run> runs);
  // Takes the features of a target layer from the streams that enter it.
  void tap(const Context& ctx, const Streams& streams, int target_index);
  // Stores the window keys of the chosen rows; all targets have been tapped.
  void commit(const Context& ctx, const DraftWeights& w, Scratch& s);

  void propose(const Context& ctx, const NetworkWeights& w, const Frequencies& frequencies, Scratch& s,
               Streams& streams, std::span<const DraftSequence> sequences, const Picker& pick, const DraftOutput& out);

 private:
  void markov(const Context& ctx, const NetworkWeights& w, int num_sequences, const TensorView& hidden,
              const Picker& pick, const DraftOutput& out);

  const ModelConfig& config_;
  RowSet commit_rows_, block_rows_;
  std::vector<RowRange> commit_ranges_;
  std::vector<kernels::Run> runs_;
  std::vector<int32_t> host_ids_;
  TensorView features_;         // [commit rows, targets d]
  TensorView main_;             // [commit rows, d]
  TensorView folded_;           // [S n, d] before the last norm
  TensorView markov_;           // [S, rank]
  int32_t* ids_ = nullptr;      // [S n] the blocks' input ids
  int32_t* anchors_ = nullptr;  // [S]
};

}  // namespace deepinfer::model
