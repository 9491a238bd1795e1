#include "sched/replay_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::sched {
namespace {

constexpr int64_t kBlock = 128;

}  // namespace

Result<void> validate(const ReplayConfig& c, int max_draft) {
  if (c.window < 1) return fail(Code::kInvalid, "window {} is not positive", c.window);
  if (c.backtracking < max_draft + 1)
    return fail(Code::kInvalid, "MAX_BACKTRACKING_TOKENS {} is below the {} rows of a step with {} drafts",
                c.backtracking, max_draft + 1, max_draft);
  if (c.truncation != Truncation::kOff && c.keep < c.window + c.backtracking)
    return fail(Code::kInvalid, "YOCO_PREFILL_KEEP_TOKENS {} is below window {} + MAX_BACKTRACKING_TOKENS {} = {}",
                c.keep, c.window, c.backtracking, c.window + c.backtracking);
  return {};
}

int64_t deep_replay(int64_t window, int64_t layers) {
  return round_up(layers * (window - 1), kBlock);
}

HitPlan plan_hit(const HitRequest& r) {
  DI_CHECK(r.length > 0, "a prompt of {} tokens", r.length);
  int64_t blocks = std::min(r.matched_blocks, (r.length - 1) / kBlock);
  if (r.kept_from) blocks = std::min(blocks, *r.kept_from / kBlock);
  const int64_t hit = blocks * kBlock;
  return {.hit_tokens = hit, .replay = {std::max<int64_t>(0, hit - r.replay_rows), hit}, .rows = {hit, r.length}};
}

ChunkPlan plan_chunk(const ChunkRequest& r, const ReplayConfig& config) {
  auto [s, e] = r.chunk;
  DI_CHECK(s >= 0 && s < e, "chunk [{}, {})", s, e);
  ChunkPlan plan;
  plan.producers = {.rows = r.chunk,
                    .visible_from = r.valid_from,
                    .ring_from = std::max({s, e - config.ring(), r.valid_from}),
                    .global_write_from = r.hit_tokens};
  const int64_t floor = std::max(r.kept_from, r.valid_from);
  RegionRows& c = plan.consumers;
  c = {.rows = r.chunk,
       .visible_from = floor,
       .ring_from = std::max({s, e - config.ring(), floor}),
       .global_write_from = r.hit_tokens};
  if (config.truncation == Truncation::kCompact) {
    c.rows.begin = std::max(s, std::min(r.kept_from, e));
    if (c.rows.empty() && r.keeps_placeholder) {
      c.rows = {e - 1, e};
      plan.is_placeholder = true;
    }
  }
  return plan;
}

RangeOfRows visible_window(const RegionRows& region, int64_t position, int64_t window) {
  return {std::max({position - window + 1, region.visible_from, int64_t{0}}), position + 1};
}

int64_t first_full_window(const RegionRows& region, int64_t window) {
  int64_t first = region.visible_from <= 0 ? 0 : region.visible_from + window - 1;
  return std::min(std::max(region.rows.begin, first), region.rows.end);
}

DraftBlock plan_draft_block(int64_t first_row, int accepted, int num_drafts, int64_t window, int64_t ring,
                            int64_t state) {
  int64_t last = first_row + accepted;
  DraftBlock block{.anchor = last + 1, .visible = {std::max<int64_t>(0, last - (window - 1)), last + num_drafts + 1}};
  for (int k = 0; k < num_drafts; ++k) {
    block.positions.push_back(last + 1 + k);
    block.slots.push_back(ring_slot(last + 1 + k, state, ring));
  }
  return block;
}

}  // namespace deepinfer::sched
