// What one forward pass is asked to do. Plain structs; the engine fills them from its step plan.
//
//   sequences   A          B     C                      rows of a sequence are consecutive positions
//   rows        0 1 2 3 4  5     6 7 8 ...              of the batch, in the order of `sequences`
//   kept            2 3 4  5           8                rows at or above keep_from: the only ones that the consumer
//                                                       region (the boundary layer's queries and all after it) sees
//
// Views are device memory; spans and block tables are read on the host during the call.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "tensor/view.h"

namespace deepinfer::model {

// Consecutive new rows of one sequence.
struct SequenceRows {
  int32_t slot = 0;                      // private state
  const int32_t* block_table = nullptr;  // host; global blocks, entry b covers positions [128 b, 128 b + 128)
  int64_t first_pos = 0;
  int32_t num_rows = 0;
  int64_t window_floor = 0;  // window keys below it do not exist (first row of a bounded replay)
  int64_t write_floor = 0;   // global rows of positions below it are shared and stay as they are (prefix hit)
  // First position that the consumer region computes: 0 with truncation off or masked, final length - keep with it, and
  // at or above the end of these rows for an encoder-only prefill. At most first_pos if the configuration has no
  // boundary.
  int64_t keep_from = 0;
  int64_t consumer_floor = 0;  // the consumer region sees no window key below it: final length - keep with truncation
  // Compressed ids of the positions just before first_pos, oldest first, kEngramDead in image spans: max_ngram - 1 of
  // them, fewer only at the start of the sequence.
  std::span<const int32_t> context;
};

// Sees intermediate values; for traces and tests. Views are host memory, valid during the call; rows are those of the
// region.
class Observer {
 public:
  virtual ~Observer() = default;
  // Streams [T, m d] that enter `layer` (num_hidden_layers: that leave the last), and the fold weights pre [T, m].
  virtual void on_streams(int layer, const TensorView& streams, const TensorView& pre) = 0;
  // chosen [T, top_k] I32; candidates [T, blocks] I32 at the candidate source, else empty.
  virtual void on_selection(int layer, const TensorView& chosen, const TensorView& candidates) = 0;
  virtual void on_engram_rows(int engram_index, const TensorView& rows) = 0;  // [T, columns] I64
};

struct ForwardBatch {
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> ids;         // [T]; -1: the row of `given`
  TensorView given;                     // [T, d] F32, or empty
  std::span<const uint8_t> is_image;    // [T], 1 inside an image span; empty: all text
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending, all kept
  // A step whose rows all want logits may be filled up with rows of a slot that belongs to nobody, so that recorded
  // work fits it: up to `logit_room` rows of logits are then written.
  int32_t padding_slot = -1;  // -1: there is none
  int64_t logit_room = 0;
  Observer* observer = nullptr;
};

// A sequence whose positions up to last_pos have gone through forward and are committed.
struct DraftSequence {
  int32_t slot = 0;
  int64_t last_pos = 0;
  int32_t anchor = 0;        // the newest token; its own position is last_pos + 1
  int64_t window_floor = 0;  // no committed draft key below it (keep_from of a short truncated prompt)
};

// Chooses draft k of all sequences: logits [S, V] F32 (rows are strided) -> tokens [S].
using Picker = std::function<void(int k, const TensorView& logits, int32_t* tokens)>;

// Buffers that propose() fills. S sequences, n = dspark_block_size.
struct DraftOutput {
  TensorView logits;      // [S n, V] F32; row s n + k is what draft k of sequence s was picked from
  TensorView tokens;      // [n, S] I32; draft k is meant for position last_pos + 2 + k
  TensorView confidence;  // [S, n] F32; sigmoid of it estimates the acceptance of draft k, given all before
};

}  // namespace deepinfer::model
