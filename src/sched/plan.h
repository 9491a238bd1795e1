// One step, as a value: what the scheduler decides and the engine carries out. It can be printed, logged, replayed and
// compared; it knows sizes and ids, never devices.
//
//   Steps run in the order in which they were planned. The next step is planned while one runs, so a decode run does
//   not know its position: the executor fills it in from what the step before decided (`decode` below).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::sched {

enum class SeqId : int32_t {};
inline constexpr SeqId kNoSequence{-1};

// A sequence starts (or starts again after a preemption: `epoch` then is larger, and results of older epochs are void).
struct PlannedStart {
  SeqId seq = kNoSequence;
  uint32_t epoch = 0;
  int32_t slot = 0;
  int64_t known_tokens = 0;     // prompt and committed output
  int64_t start_pos = 0;        // first position that is computed; below it everything comes from the hit
  int32_t windows_from = -1;    // place of the stored windows before start_pos, copied first; -1: none
  std::vector<int32_t> blocks;  // hit blocks
  int32_t fork_slot = -1;       // a fork copies this slot first
  int32_t copy_block_from = -1, copy_block_to = -1;  // and the partly filled block
};

// Entry `index` of a sequence's block table now is `block`, with the same content.
struct MovedBlock {
  int64_t index = 0;
  int32_t block = 0;
};

struct PlannedRun {
  SeqId seq = kNoSequence;
  uint32_t epoch = 0;
  int32_t slot = 0;
  bool decode = false;    // rows: the newest token, then `rows - 1` drafts, at the sequence's current end
  int64_t first_pos = 0;  // prefill only
  int32_t rows = 0;
  bool sample = false;       // decode, and the chunk that ends at the last known token
  int64_t write_floor = 0;   // global rows below are shared: never written
  int64_t window_floor = 0;  // producer layers see no window key below (replay after a hit)
  int64_t kept_from = 0;     // consumer layers compute rows from here on; earlier rows are invisible to their windows
  // The window state behind this many positions is copied to the place as soon as they are committed, if it is this run
  // that passes them. A prefill chunk then ends there. 0: nothing is stored.
  int64_t windows_at = 0;
  int32_t windows_to = -1;
  std::vector<MovedBlock> moved_blocks;  // changed in the sequence's block table before the run
  std::vector<int32_t> new_blocks;       // then appended to it
};

struct PlannedEnd {
  SeqId seq = kNoSequence;
  uint32_t epoch = 0;
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<PlannedStart> starts;
  std::vector<PlannedRun> runs;
  std::vector<PlannedEnd> ends;  // the executor forgets these first, then starts, then runs
  int num_rows = 0;
  int num_logit_rows = 0;
  bool proposes = true;  // draft for the sequences that sample

  bool empty() const { return runs.empty() && ends.empty() && starts.empty(); }
};

std::string describe(const StepPlan& plan);

}  // namespace deepinfer::sched
