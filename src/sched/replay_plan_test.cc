#include "sched/replay_plan.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/testing/runtime_cases.h"
#include "sched/work_estimate.h"

namespace deepinfer::sched {
namespace {

using testing_cases::name_of;
using testing_cases::number;
using testing_cases::numbers;
using testing_cases::runtime_cases;

RangeOfRows range_of(const json::value& v) {
  auto n = numbers<int64_t>(v);
  return n.empty() ? RangeOfRows{} : RangeOfRows{n[0], n[1]};
}
RangeOfRows or_none(RangeOfRows r) {
  return r.empty() ? RangeOfRows{} : r;
}

TEST(ReplayCases, BoundedReplay) {
  for (const auto& c : runtime_cases("bounded_replay")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    int64_t s = number<int64_t>(in, "q_start"), e = s + number<int64_t>(in, "q_len"),
            window = number<int64_t>(in, "window"), ring = number<int64_t>(in, "ring_size");
    ReplayConfig config{Truncation::kCompact, number<int64_t>(in, "keep_tokens"), window, ring - window};
    ChunkPlan plan = plan_chunk({.chunk = {s, e},
                                 .kept_from = config.kept_from(number<int64_t>(in, "prompt_len")),
                                 .valid_from = number<int64_t>(in, "swa_valid_start"),
                                 .keeps_placeholder = true},
                                config);
    const RegionRows& got = plan.consumers;
    EXPECT_EQ(got.rows.begin - s, number<int64_t>(want, "clip")) << name_of(c);
    EXPECT_EQ(got.rows, range_of(want.at("rows"))) << name_of(c);
    EXPECT_EQ(got.rows.size(), number<int64_t>(want, "num_rows")) << name_of(c);
    EXPECT_EQ(or_none({got.ring_from, e}), range_of(want.at("ring_writes"))) << name_of(c);
    EXPECT_EQ(or_none(visible_window(got, got.rows.begin, window)), range_of(want.at("first_row_visible")))
        << name_of(c);
    EXPECT_EQ(or_none(visible_window(got, e - 1, window)), range_of(want.at("last_row_visible"))) << name_of(c);
    int64_t full = first_full_window(got, window);
    EXPECT_EQ(full < e && !plan.is_placeholder ? full : -1, want.at("first_unclipped_window_row").is_null()
                                                                ? -1
                                                                : number<int64_t>(want, "first_unclipped_window_row"))
        << name_of(c);
    EXPECT_EQ(got.ring_from < e ? ring_slot(e - 1, number<int64_t>(in, "state_id"), ring) : -1,
              number<int64_t>(want, "last_slot"))
        << name_of(c);
  }
}

TEST(ReplayCases, PrefixHitCap) {
  for (const auto& c : runtime_cases("prefix_hit_cap")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    int64_t keep = number<int64_t>(in, "keep_tokens");
    ReplayConfig config{keep > 0 ? Truncation::kCompact : Truncation::kOff, keep, number<int64_t>(in, "window"), 6};
    int64_t length = number<int64_t>(in, "prompt_len"), kept_from = config.kept_from(length);
    HitRequest request{.length = length,
                       .matched_blocks = number<int64_t>(in, "matched_blocks"),
                       .kept_from = std::nullopt,
                       .replay_rows = config.window};
    if (keep > 0) request.kept_from = kept_from;
    HitPlan got = plan_hit(request);
    EXPECT_EQ(got.hit_tokens, number<int64_t>(want, "hit_tokens")) << name_of(c);
    EXPECT_EQ(or_none(got.replay), range_of(want.at("replay_range"))) << name_of(c);
    EXPECT_EQ(got.rows, range_of(want.at("normal_rows"))) << name_of(c);
    if (!want.at("kept_rows").is_null()) {
      EXPECT_EQ((RangeOfRows{kept_from, length}), range_of(want.at("kept_rows"))) << name_of(c);
    }
  }
}

// The replay ranges of the prefix cache's cases: the window before the hit.
TEST(ReplayCases, PrefixCacheReplayRange) {
  for (const auto& c : runtime_cases("prefix_cache")) {
    const auto& want = c.at("expected");
    int64_t hit = number<int64_t>(want, "hit_tokens");
    HitPlan got =
        plan_hit({.length = hit + 1, .matched_blocks = hit / 128, .kept_from = std::nullopt, .replay_rows = 128});
    EXPECT_EQ(got.rows.begin, number<int64_t>(want, "recompute_from")) << name_of(c);
    EXPECT_EQ(or_none(got.replay), range_of(want.at("replay_range"))) << name_of(c);
  }
}

TEST(ReplayCases, Halo) {
  for (const auto& c : runtime_cases("halo"))
    EXPECT_EQ(exact_halo(number<int64_t>(c.at("inputs"), "window"), number<int64_t>(c.at("inputs"), "layers")),
              number<int64_t>(c.at("expected"), "rows"));
}

TEST(ReplayCases, SwaRing) {
  for (const auto& c : runtime_cases("swa_ring")) {
    const auto& in = c.at("inputs");
    EXPECT_EQ(
        ring_slot(number<int64_t>(in, "position"), number<int64_t>(in, "state_id"), number<int64_t>(in, "ring_size")),
        c.at("expected").to_number<int64_t>());
  }
}

TEST(ReplayCases, DraftBlock) {
  for (const auto& c : runtime_cases("draft_block")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    DraftBlock got = plan_draft_block(number<int64_t>(in, "first_row_position"), number<int>(in, "accepted"),
                                      number<int>(in, "block"), number<int64_t>(in, "window"),
                                      number<int64_t>(in, "ring_size"), number<int64_t>(in, "state_id"));
    EXPECT_EQ(got.anchor, number<int64_t>(want, "anchor_position"));
    EXPECT_EQ(got.positions, numbers<int64_t>(want.at("positions")));
    EXPECT_EQ(got.slots, numbers<int64_t>(want.at("store_slots")));
    EXPECT_EQ(got.visible, range_of(want.at("visible")));
  }
}

TEST(WorkEstimateCases, LengthBounds) {
  for (const auto& c : runtime_cases("length_bounds")) {
    const auto& in = c.at("inputs");
    EXPECT_EQ(position_bound(number<int64_t>(in, "max_model_len"), number<int>(in, "max_draft"),
                             in.at("async_scheduling").as_bool()),
              number<int64_t>(c.at("expected"), "runtime_max_model_len"));
  }
}

TEST(WorkEstimateCases, AttentionPairs) {
  for (const auto& c : runtime_cases("attention_pairs")) {
    const auto& in = c.at("inputs");
    EXPECT_EQ(attention_pairs(number<int64_t>(in, "begin"), number<int64_t>(in, "end"), number<int64_t>(in, "ratio"),
                              number<int64_t>(in, "cap")),
              c.at("expected").to_number<int64_t>());
  }
}

TEST(WorkEstimateCases, PrefillVote) {
  for (const auto& c : runtime_cases("prefill_vote")) {
    bool wants[8];
    std::size_t n = 0;
    for (const auto& w : c.at("inputs").at("want").as_array()) wants[n++] = w.as_bool();
    bool prefill = votes_for_prefill(number<int64_t>(c.at("inputs"), "decode_step"), std::span<const bool>(wants, n));
    EXPECT_EQ(prefill ? "prefill" : "decode", c.at("expected").as_string());
  }
}

// Every case group must be used by some test of the project; a new group fails here until it is.
TEST(RuntimeCases, EveryGroupIsCovered) {
  const std::set<std::string> covered = {
      // here
      "bounded_replay", "prefix_hit_cap", "halo", "swa_ring", "draft_block", "length_bounds", "attention_pairs",
      "prefill_vote",
      // sched/verification_budget_test.cc
      "confidence_scheduling", "confidence_scheduling_early_stop", "device_reallocation", "runtime_estimators",
      "dp_joint_budget", "graph_sizes",
      // sampling/verify_test.cc
      "rejection_rows", "rejection_chains", "output_laws", "non_anticipation", "stops", "common_noise",
      // parallel/
      "cp_mirror", "cp_boundary", "cp_balance", "eplb_placement", "eplb_initial", "eplb_routes",
      // cache/prefix_index_test.cc
      "prefix_cache"};
  auto file = json::parse_file(DI_SOURCE_DIR "/tests/golden/cases/runtime_cases.json");
  ASSERT_TRUE(file);
  for (const auto& [name, group] : file->at("cases").as_object())
    if (group.is_array()) {
      EXPECT_TRUE(covered.contains(std::string(name))) << name;
    }
}

TEST(ReplayPlan, ChunkingChangesNoRowAndNoVisibility) {
  std::mt19937 rng(8);
  for (int round = 0; round < 400; ++round) {
    int64_t length = 1 + static_cast<int64_t>(rng() % 1200);
    ReplayConfig config{Truncation::kCompact, 140, 128, 6};
    const RangeOfRows kept_rows{config.kept_from(length), length};
    HitPlan hit = plan_hit({.length = length,
                            .matched_blocks = static_cast<int64_t>(rng() % 10),
                            .kept_from = kept_rows.begin,
                            .replay_rows = 128});
    ChunkRequest whole{.chunk = {hit.replay.begin, length},
                       .kept_from = kept_rows.begin,
                       .valid_from = hit.replay.begin,
                       .hit_tokens = hit.hit_tokens};
    ChunkPlan all = plan_chunk(whole, config);
    EXPECT_EQ(all.consumers.rows, kept_rows);
    EXPECT_GE(all.consumers.rows.begin, hit.hit_tokens) << "kept rows are normal new rows";
    int64_t kept = 0;
    for (int64_t s = hit.replay.begin; s < length;) {
      int64_t e = std::min(length, s + 1 + static_cast<int64_t>(rng() % 300));
      ChunkRequest part = whole;
      part.chunk = {s, e};
      ChunkPlan plan = plan_chunk(part, config);
      EXPECT_EQ(plan.producers.rows, part.chunk);
      EXPECT_EQ(plan.consumers.visible_from, all.consumers.visible_from);
      EXPECT_EQ(plan.producers.global_write_from, hit.hit_tokens);
      if (!plan.consumers.rows.empty()) {
        EXPECT_EQ(plan.consumers.rows.begin, std::max(s, kept_rows.begin));
      }
      kept += plan.consumers.rows.size();
      if (e == length) {
        EXPECT_EQ(plan.consumers.ring_from, std::max({s, all.consumers.ring_from, int64_t{0}}));
      }
      s = e;
    }
    EXPECT_EQ(kept, kept_rows.size());
  }
}

TEST(ReplayPlan, MaskComputesAllAndSeesWhatCompactSees) {
  ReplayConfig compact{Truncation::kCompact, 140, 128, 6}, mask{Truncation::kMask, 140, 128, 6};
  ChunkRequest r{.chunk = {512, 1000}, .kept_from = compact.kept_from(1000)};
  EXPECT_EQ(plan_chunk(r, mask).consumers.rows, (RangeOfRows{512, 1000}));
  EXPECT_EQ(plan_chunk(r, mask).consumers.visible_from, plan_chunk(r, compact).consumers.visible_from);
  EXPECT_EQ(plan_chunk(r, mask).consumers.ring_from, plan_chunk(r, compact).consumers.ring_from);
}

TEST(ReplayPlan, ChunksBeforeTheKeptRowsLeaveTheConsumersOut) {
  ReplayConfig config{Truncation::kCompact, 140, 128, 6};
  EXPECT_TRUE(plan_chunk({.chunk = {0, 512}, .kept_from = 860}, config).consumers.rows.empty());
}

TEST(ReplayPlan, DeepReplayCoversAllProducerLayersOrThePrompt) {
  EXPECT_EQ(deep_replay(128, 20), 2560);
  // An output row at H needs what layer 0 saw layers x (W - 1) positions before.
  EXPECT_GE(deep_replay(128, 20), exact_halo(128, 20));
  EXPECT_EQ(plan_hit({.length = 10000, .matched_blocks = 70, .replay_rows = 2560}).replay.size(), 2560);
  EXPECT_EQ(plan_hit({.length = 1000, .matched_blocks = 6, .replay_rows = 2560}).replay.begin, 0);
}

TEST(ReplayPlan, RefusesTooFewKeptRowsWithTheNumbers) {
  EXPECT_TRUE(validate({Truncation::kCompact, 134, 128, 6}, 5));
  EXPECT_EQ(validate({Truncation::kCompact, 133, 128, 6}, 5).error().message,
            "YOCO_PREFILL_KEEP_TOKENS 133 is below window 128 + MAX_BACKTRACKING_TOKENS 6 = 134");
  EXPECT_EQ(validate({Truncation::kOff, 0, 128, 5}, 5).error().message,
            "MAX_BACKTRACKING_TOKENS 5 is below the 6 rows of a step with 5 drafts");
}

}  // namespace
}  // namespace deepinfer::sched
