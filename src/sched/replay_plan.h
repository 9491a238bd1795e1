// Which rows each half of the network computes for a chunk of a prompt, what they may see, and what they may write.
//
//   positions      0 ........ H-r ........ H ............ L-K ........ L
//   global keys    cached                  new            new
//   producers      -          replayed     computed       computed
//   consumers      -          -            -              computed
//
//   L  length that the prompt (with output that is recomputed) finally has, not the part that has arrived
//   K  rows at the end that the consumers see (truncation); H  end of the prefix hit;  r  rows replayed before it
//   R  slots of a window ring: the window and what may be taken back
//
// Every row sees window keys from max(p - W + 1, visible_from) on; row p is kept in the ring iff p >= ring_from; global
// keys are written iff p >= global_write_from, so that replayed rows never touch shared blocks. Pure functions: L - K,
// H and r are fixed when the sequence is admitted, hence chunking changes nothing (spec: replay.md 3, 6, 8;
// serving.md 2.3). The scheduler plans hits with them, the executor the rows of each run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace deepinfer::sched {

enum class Truncation : uint8_t {
  kOff,      // consumers compute and see everything
  kMask,     // compute everything, see the kept rows only: the oracle of kCompact
  kCompact,  // compute the kept rows only
};

struct RangeOfRows {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end > begin ? end - begin : 0; }
  bool empty() const { return end <= begin; }
  bool operator==(const RangeOfRows&) const = default;
};

struct ReplayConfig {
  Truncation truncation = Truncation::kOff;
  int64_t keep = 0;          // K; without meaning when truncation is off
  int64_t window = 128;      // W
  int64_t backtracking = 6;  // positions that may be taken back: drafts + 1 at least
  int64_t ring() const { return window + backtracking; }
  // First position that the consumers know of.
  int64_t kept_from(int64_t length) const {
    return truncation == Truncation::kOff || length < keep ? 0 : length - keep;
  }
};
// K >= W + backtracking and backtracking >= drafts + 1, else kInvalid with the numbers: after the prompt a step may
// take back `backtracking` rows, and the ring must then still hold a window of computed ones.
Result<void> validate(const ReplayConfig& config, int max_draft);

// Rows needed so that the last row of a stack of window layers is exact: each layer reaches one window further back.
constexpr int64_t exact_halo(int64_t window, int64_t layers) {
  return window + (layers - 1) * (window - 1);
}

// Rows that a deep replay runs again so that `layers` window layers (producers, or all without truncation) are exact
// from the hit on, in whole blocks. A new row needs windows that reach 1 position less per layer than the last replayed
// row would.
int64_t deep_replay(int64_t window, int64_t layers);

struct HitRequest {
  int64_t length = 0;                // L
  int64_t matched_blocks = 0;        // that are cached
  std::optional<int64_t> kept_from;  // L - K; nullopt: no truncation
  int64_t replay_rows = 0;           // r: one window, a deep replay, or none if the windows were stored
};
struct HitPlan {
  int64_t hit_tokens = 0;  // H
  RangeOfRows replay;      // [H - r, H), global keys not written
  RangeOfRows rows;        // [H, L)
};
// H = 128 x min(matched, floor((L - 1) / 128), floor((L - K) / 128) if truncated): at least one row is computed, and
// every kept row is a normal new one.
HitPlan plan_hit(const HitRequest& request);

struct RegionRows {
  RangeOfRows rows;               // computed in this chunk; empty: the sequence is absent from these layers
  int64_t visible_from = 0;       // floor of window visibility
  int64_t ring_from = 0;          // first row that is kept in the ring; >= rows.end: none
  int64_t global_write_from = 0;  // write floor; producers (and the key side of the boundary) only
};
struct ChunkPlan {
  RegionRows producers, consumers;
  bool is_placeholder = false;  // the consumers' only row lies before the kept ones: sees nothing, writes nothing
};
struct ChunkRequest {
  RangeOfRows chunk;               // [s, e)
  int64_t kept_from = 0;           // L - K, 0 without truncation
  int64_t valid_from = 0;          // first position with usable window keys: H - r after a hit, else 0
  int64_t hit_tokens = 0;          // H
  bool keeps_placeholder = false;  // a kernel that cannot drop a sequence gets one row of chunks before the kept ones
};
ChunkPlan plan_chunk(const ChunkRequest& request, const ReplayConfig& config);

// Window keys that row p of a region sees, empty before visible_from.
RangeOfRows visible_window(const RegionRows& region, int64_t position, int64_t window);
// First row of a region whose window is not cut by visible_from; rows.end if there is none.
int64_t first_full_window(const RegionRows& region, int64_t window);
inline int64_t ring_slot(int64_t position, int64_t state, int64_t ring) {
  return state * ring + position % ring;
}

// The draft pass after a step whose first row was at `first_row` and which accepted `accepted` drafts: the final token
// is the anchor, drafts follow; their rows see the window before it and each other.
struct DraftBlock {
  int64_t anchor = 0;
  std::vector<int64_t> positions, slots;
  RangeOfRows visible;
};
DraftBlock plan_draft_block(int64_t first_row, int accepted, int num_drafts, int64_t window, int64_t ring,
                            int64_t state);

}  // namespace deepinfer::sched
