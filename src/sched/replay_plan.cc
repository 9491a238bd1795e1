#include "sched/replay_plan.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::sched {
namespace {

constexpr int64_t kBlock = 128;

// First position that the consumers know of.
int64_t kept_from(int64_t length, const ReplayConfig& config) {
  return config.truncation == Truncation::kOff ? 0 : std::max<int64_t>(0, length - config.keep);
}

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

Result<Truncation> parse_truncation(const std::string& name) {
  if (name == "off") return Truncation::kOff;
  if (name == "mask") return Truncation::kMask;
  if (name == "compact") return Truncation::kCompact;
  return fail(Code::kInvalid, "YOCO_PREFILL_TRUNCATION_MODE '{}' is none of off, mask, compact", name);
}

HitPlan plan_hit(int64_t length, int64_t matched_blocks, const ReplayConfig& config, Replay replay, int64_t layers) {
  DI_CHECK(length > 0, "a prompt of {} tokens", length);
  HitPlan plan;
  plan.kept = {kept_from(length, config), length};
  int64_t blocks = std::min(matched_blocks, (length - 1) / kBlock);
  if (config.truncation != Truncation::kOff) blocks = std::min(blocks, plan.kept.begin / kBlock);
  plan.hit_tokens = blocks * kBlock;
  int64_t rows = 0;
  if (replay == Replay::kBounded) rows = config.window;
  // The newest row of the first computed block needs windows that reach 1 position less per layer than a row at H - 1
  // would.
  if (replay == Replay::kExact) rows = round_up(layers * (config.window - 1), kBlock);
  plan.replay = {std::max<int64_t>(0, plan.hit_tokens - rows), plan.hit_tokens};
  plan.rows = {plan.hit_tokens, length};
  return plan;
}

ChunkPlan plan_chunk(const ChunkRequest& r, const ReplayConfig& config) {
  auto [s, e] = r.chunk;
  DI_CHECK(s >= 0 && s < e && e <= r.length, "chunk [{}, {}) of {}", s, e, r.length);
  ChunkPlan plan;
  plan.producers = {.rows = r.chunk,
                    .visible_from = r.valid_from,
                    .ring_from = std::max({s, e - config.ring(), r.valid_from}),
                    .global_write_from = r.hit_tokens};
  int64_t kept = kept_from(r.length, config), floor = std::max(kept, r.valid_from);
  RegionRows& c = plan.consumers;
  c = {.rows = r.chunk,
       .visible_from = floor,
       .ring_from = std::max({s, e - config.ring(), floor}),
       .global_write_from = r.hit_tokens};
  if (config.truncation == Truncation::kCompact) {
    c.rows.begin = std::max(s, std::min(kept, e));
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
