// What must never change a bit: chunking, batching, ranks, regions, rejected drafts, stopping and going on elsewhere.
#include <gtest/gtest.h>

#include "model/invariants.h"

namespace deepinfer::model {
namespace {

TEST(Chunks, GiveTheBitsOfOnePass) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  chunks_give_the_bits_of_one_pass(model);
}

TEST(Batches, DoNotMix) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  batches_do_not_mix(model);
}

TEST(Drafts, RejectedRowsLeaveNoTrace) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  rejected_rows_leave_no_trace(model);
}

class RankCounts : public testing::TestWithParam<int> {};

TEST_P(RankCounts, GiveTheBitsOfOne) {
  const std::vector<int32_t> ids = prompt(70);
  TestModel one({.numerics = kernels::Numerics::kFast});
  const TestSequence s = one.sequence(ids);
  const std::vector<float> want = one.prefill(s, 33);
  const Proposal draft = one.propose({{.slot = s.slot, .last_pos = 69, .anchor = 11}})[0];

  TestModel many({.numerics = kernels::Numerics::kFast, .ranks = GetParam()});
  for (int rank : {0, GetParam() - 1}) {
    many.restart();
    const TestSequence t = many.sequence(ids);
    const std::vector<float> head = many.forward({{.sequence = &t, .begin = 0, .end = 33}}, nullptr, rank);
    const std::vector<float> rest = many.forward({{.sequence = &t, .begin = 33, .end = 70}}, nullptr, rank);
    EXPECT_TRUE(same_bits(head, rows_of(want, 0, 33))) << "rank " << rank;
    EXPECT_TRUE(same_bits(rest, rows_of(want, 33, 70))) << "rank " << rank;
    const Proposal p = many.propose({{.slot = t.slot, .last_pos = 69, .anchor = 11}})[0];
    EXPECT_TRUE(same_bits(p.logits, draft.logits));
    EXPECT_TRUE(same_bits(p.confidence, draft.confidence));
    EXPECT_EQ(p.tokens, draft.tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankCounts, testing::Values(2, 3, 4), testing::PrintToStringParamName());

TEST(Ranks, ReadTheirOwnBytesOnly) {
  TestModel one, four({.ranks = 4});
  // Whole on every rank: what weights_map.h lists.
  auto is_whole = [](const std::string& name) {
    for (const char* part :
         {"norm", "hc_", "gate", "wq_a", "attn.wkv", "compressor", "indexer", "sink", "_weight", "confidence"}) {
      if (name.find(part) != std::string::npos) return true;
    }
    return false;
  };
  int64_t whole = 0, cut = 0;
  for (const weights::WeightSpec& spec : one.rank().checkpoint.specs())
    (is_whole(spec.name) ? whole : cut) += spec.bytes();
  EXPECT_EQ(one.rank().checkpoint.delivered_bytes(), whole + cut);
  int64_t sum = 0;
  for (int r = 0; r < 4; ++r) {
    const int64_t mine = four.ranks()[r].checkpoint.delivered_bytes();
    EXPECT_LE(mine, whole + cut / 4 + cut / 40) << "rank " << r;  // quanta of 32 rows leave them unequal by a little
    sum += mine;
  }
  EXPECT_EQ(sum, 4 * whole + cut);
}

TEST(Regions, ComposeToTheWhole) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(70);
  const TestSequence a = model.sequence(ids), b = model.sequence(ids);
  const auto whole = model.forward({{.sequence = &a, .begin = 0, .end = 70}});
  EXPECT_TRUE(same_bits(model.forward({{.sequence = &b, .begin = 0, .end = 70}}, nullptr, 0, true), whole));
}

// What a truncated prompt leaves behind is the same however it is cut, and a sequence without kept rows drops out.
TEST(Regions, TruncationDoesNotDependOnChunks) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(120);
  const int64_t keep_from = 120 - 20;
  const TestSequence a = model.sequence(ids);
  const auto want = model.forward({{.sequence = &a, .begin = 0, .end = 120, .keep_from = keep_from}});
  ASSERT_EQ(want.size(), 20u * 512);
  for (int64_t chunk : {1, 7, 50, 101, 110}) {
    model.restart();
    const TestSequence s = model.sequence(ids), other = model.sequence(prompt(120, 4));
    std::vector<float> mine;
    for (int64_t at = 0; at < 120; at += chunk) {
      const int64_t end = std::min<int64_t>(120, at + chunk);
      const auto part = model.forward({{.sequence = &other, .begin = at, .end = end, .keep_from = 120},
                                       {.sequence = &s, .begin = at, .end = end, .keep_from = keep_from}});
      mine.insert(mine.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(mine, want)) << "chunks of " << chunk;
  }
}

// Rows that are computed and masked give the bits, and leave the state, of rows that are left out.
TEST(Regions, MaskedRowsAreAsGoodAsAbsent) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(120);
  for (int64_t keep : {20, 14, 119}) {
    model.restart();
    const TestSequence a = model.sequence(ids), b = model.sequence(ids);
    std::vector<float> absent, masked;
    for (int64_t at = 0; at < 120; at += 40) {
      const TestRun run{.sequence = &a, .begin = at, .end = at + 40, .keep_from = 120 - keep};
      TestRun other = run;
      other.sequence = &b;
      other.is_masked = true;
      for (float x : model.forward({run})) absent.push_back(x);
      for (float x : model.forward({other})) masked.push_back(x);
    }
    EXPECT_TRUE(same_bits(masked, absent)) << keep;
    const auto drafts = model.propose({{.slot = a.slot, .last_pos = 119, .anchor = 5, .window_floor = 120 - keep},
                                       {.slot = b.slot, .last_pos = 119, .anchor = 5, .window_floor = 120 - keep}});
    EXPECT_TRUE(same_bits(drafts[0].logits, drafts[1].logits)) << keep;
  }
}

// The last layer leaves out what only rows without logits would need: nobody sees a difference, neither in the logits
// nor in what comes after. Window 8, ring 14: up to 7 rows of logits narrow it, more do not.
TEST(Regions, RowsWithoutLogitsLeaveTheirKeysAlone) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(90), others = prompt(90, 4);
  for (const int64_t wanted : {0, 1, 2, 7, 8, 20}) {
    model.restart();
    const TestSequence a = model.sequence(ids), b = model.sequence(ids), other = model.sequence(others);
    std::vector<float> want, mine;
    for (int64_t at = 0; at < 80; at += 40) {
      const auto all = model.forward({{.sequence = &a, .begin = at, .end = at + 40}});
      const auto last = rows_of(all, 40 - wanted, 40);
      want.insert(want.end(), last.begin(), last.end());
      const auto few = model.forward({{.sequence = &other, .begin = at, .end = at + 40, .logits_from = at + 40},
                                      {.sequence = &b, .begin = at, .end = at + 40, .logits_from = at + 40 - wanted}});
      mine.insert(mine.end(), few.begin(), few.end());
    }
    EXPECT_TRUE(same_bits(mine, want)) << wanted;
    const auto drafts =
        model.propose({{.slot = a.slot, .last_pos = 79, .anchor = 5}, {.slot = b.slot, .last_pos = 79, .anchor = 5}});
    EXPECT_TRUE(same_bits(drafts[0].logits, drafts[1].logits)) << wanted;
    EXPECT_TRUE(same_bits(model.forward({{.sequence = &b, .begin = 80, .end = 90}}),
                          model.forward({{.sequence = &a, .begin = 80, .end = 90}})))
        << wanted;
  }
}

// With every row kept that the last ones depend on, truncation changes nothing: 4 consumer layers of window 8.
TEST(Regions, KeepingTheWholeDepthIsExact) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(120);
  const TestSequence a = model.sequence(ids), b = model.sequence(ids);
  const auto full = model.prefill(a);
  const int64_t depth = 8 + 3 * 7;
  const auto kept = model.forward({{.sequence = &b, .begin = 0, .end = 120, .keep_from = 120 - depth}});
  EXPECT_TRUE(same_bits(rows_of(kept, depth - 1, depth), rows_of(full, 119, 120)));
}

// Targets on both sides forbid a boundary: the same network as one region.
TEST(Regions, AreTheNetworkThatHasNone) {
  const OtherTargets both_sides("5, 7, 8");
  TestModel two({.numerics = kernels::Numerics::kFast});
  TestModel one({.numerics = kernels::Numerics::kFast, .checkpoint = both_sides.path()});
  ASSERT_EQ(two.config().boundary_layer(), 6);
  ASSERT_EQ(one.config().boundary_layer(), -1);
  const TestSequence a = two.sequence(prompt(70)), b = one.sequence(prompt(70));
  EXPECT_TRUE(same_bits(two.prefill(a, 33), one.prefill(b, 33)));
  const Proposal draft = one.propose({{.slot = b.slot, .last_pos = 69, .anchor = 5}})[0];
  one.restart();
  const TestSequence again = one.sequence(prompt(70));
  one.prefill(again, 7);
  EXPECT_TRUE(same_bits(one.propose({{.slot = again.slot, .last_pos = 69, .anchor = 5}})[0].logits, draft.logits));
}

// Features of producers exist for all rows, whatever the consumers keep.
TEST(Regions, ProducersCommitDraftsOfAllRows) {
  const OtherTargets below("4, 5, 6");
  TestModel model({.numerics = kernels::Numerics::kFast, .checkpoint = below.path()});
  ASSERT_EQ(model.config().boundary_layer(), 6);
  const TestSequence a = model.sequence(prompt(70)), b = model.sequence(prompt(70));
  model.prefill(a);
  for (int64_t at = 0; at < 70; at += 10)
    model.forward({{.sequence = &b, .begin = at, .end = at + 10, .keep_from = 70}});
  const auto drafts =
      model.propose({{.slot = a.slot, .last_pos = 69, .anchor = 5}, {.slot = b.slot, .last_pos = 69, .anchor = 5}});
  EXPECT_TRUE(same_bits(drafts[0].logits, drafts[1].logits));
}

TEST(State, GoesOnElsewhereFromEveryPosition) {
  TestModel model({.numerics = kernels::Numerics::kFast}), elsewhere({.numerics = kernels::Numerics::kFast});
  const std::vector<int32_t> ids = prompt(40);
  const TestSequence s = model.sequence(ids);
  std::vector<float> want;
  std::vector<Proposal> drafts;
  std::vector<std::vector<std::byte>> states, blocks;
  for (int64_t pos = 0; pos < 40; ++pos) {
    const auto row = model.forward({{.sequence = &s, .begin = pos, .end = pos + 1}});
    want.insert(want.end(), row.begin(), row.end());
    drafts.push_back(model.propose({{.slot = s.slot, .last_pos = pos, .anchor = 6}})[0]);
    cache::PackedHeader header{.end_pos = pos + 1};
    states.push_back(model.rank().states.export_state(*model.rank().stream, s.slot, header));
    header.num_ids = static_cast<int32_t>(pos + 1);
    blocks.push_back(model.rank().global.export_block(*model.rank().stream, s.blocks[0], header));
  }
  for (size_t stop = 0; stop < 39; ++stop) {
    elsewhere.restart();
    const TestSequence t = elsewhere.sequence(ids);
    Rank& rank = elsewhere.rank();
    ASSERT_TRUE(rank.states.import_state(*rank.stream, t.slot, cache::parse_packed(states[stop]).value()));
    ASSERT_TRUE(rank.global.import_block(*rank.stream, t.blocks[0], cache::parse_packed(blocks[stop]).value()));
    const auto last = static_cast<int64_t>(stop);
    EXPECT_TRUE(
        same_bits(elsewhere.propose({{.slot = t.slot, .last_pos = last, .anchor = 6}})[0].logits, drafts[stop].logits));
    const int64_t end = std::min<int64_t>(40, last + 12);
    const auto rest = elsewhere.forward({{.sequence = &t, .begin = last + 1, .end = end}});
    EXPECT_TRUE(same_bits(rest, rows_of(want, last + 1, end))) << "stopped after position " << stop;
  }
}

TEST(Model, GivenEmbeddingsReplaceIds) {
  TestModel model({.numerics = kernels::Numerics::kFast});
  TestSequence s = model.sequence(prompt(12)), t = model.sequence(prompt(12));
  const auto want = model.prefill(s);
  // The same rows as values: row 5 comes from `given`, and its id takes part in no n-gram, so mark it as image in both.
  Rank& rank = model.rank();
  const int64_t d = model.config().hidden_size;
  const weights::WeightView embed = rank.checkpoint.map("embed.weight").value();
  std::vector<float> given(static_cast<size_t>(12 * d), 0.f), logits_by_id(12 * 512), logits_by_value(12 * 512);
  for (int64_t c = 0; c < d; ++c)
    given[static_cast<size_t>(5 * d + c)] = to_float(reinterpret_cast<const bf16*>(embed.codes)[t.ids[5] * d + c]);
  std::vector<uint8_t> image(12, 0);
  image[5] = 1;
  std::vector<int32_t> rows(12);
  std::iota(rows.begin(), rows.end(), 0);
  auto run = [&](const TestSequence& q, std::vector<int32_t> ids, TensorView values, std::vector<float>& out) {
    const SequenceRows r{.slot = q.slot, .block_table = q.blocks.data(), .first_pos = 0, .num_rows = 12};
    rank.model->forward({.sequences = {&r, 1}, .ids = ids, .given = values, .is_image = image, .logit_rows = rows},
                        TensorView::make(out.data(), DType::kF32, 12, 512));
  };
  std::vector<int32_t> with_hole = t.ids;
  with_hole[5] = -1;
  run(s, s.ids, {}, logits_by_id);
  run(t, with_hole, TensorView::make(given.data(), DType::kF32, 12, d), logits_by_value);
  EXPECT_TRUE(same_bits(logits_by_id, logits_by_value));
  EXPECT_FALSE(same_bits(logits_by_id, want));  // an image row routes and hashes differently
}

TEST(Model, RefusesAnotherVocabulary) {
  const auto checkpoint = weights::Checkpoint::open(random_small("checkpoint")).value();
  auto ids = Golden("common").ids("token_map");
  ids.back() += 1;
  auto made = Ranks::create(checkpoint, {.make_ops = [] { return kernels::make_ref_ops(kernels::Numerics::kQat); },
                                         .num_blocks = 2,
                                         .model = {.limits = {.max_rows = 1, .max_sequences = 1, .max_positions = 128},
                                                   .compressed_ids = ids}});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, Code::kInvalid);
}

TEST(Model, ScratchIsWhatThePlanSays) {
  TestModel model;
  auto ops = kernels::make_ref_ops(kernels::Numerics::kQat);
  const Limits small{.max_rows = 8, .max_sequences = 1, .max_positions = 128},
      large{.max_rows = 64, .max_sequences = 4, .max_positions = 128};
  const int64_t a = Model::scratch_bytes(model.config(), {}, 0, *ops, small, 1),
                b = Model::scratch_bytes(model.config(), {}, 0, *ops, large, 1);
  EXPECT_GT(a, 0);
  EXPECT_GT(b, 4 * a);
}

}  // namespace
}  // namespace deepinfer::model
