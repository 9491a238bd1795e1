// What holds for the model on every backend, as checks on a test's model (random-small).
#pragma once

#include <gtest/gtest.h>

#include "model/testing.h"

namespace deepinfer::model {

inline std::vector<int32_t> prompt(int64_t length, int32_t seed = 0) {
  std::vector<int32_t> ids = Golden("common").ids("input_ids");
  ids.resize(static_cast<size_t>(length), 7);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = (ids[i] + seed * static_cast<int32_t>(3 + i % 5)) % 500;
  return ids;
}

inline std::span<const float> rows_of(const std::vector<float>& logits, int64_t begin, int64_t end) {
  return std::span(logits).subspan(static_cast<size_t>(begin * 512), static_cast<size_t>((end - begin) * 512));
}

inline void chunks_give_the_bits_of_one_pass(TestModel& model) {
  const std::vector<int32_t> ids = prompt(140);
  const TestSequence whole = model.sequence(ids);
  const std::vector<float> want = model.prefill(whole);
  const auto draft = model.propose({{.slot = whole.slot, .last_pos = 139, .anchor = 5}})[0];
  for (int64_t chunk : {1, 2, 3, 7, 64, 127, 128, 129}) {
    model.restart();
    const TestSequence s = model.sequence(ids);
    EXPECT_TRUE(same_bits(model.prefill(s, chunk), want)) << "chunks of " << chunk;
    EXPECT_TRUE(same_bits(model.propose({{.slot = s.slot, .last_pos = 139, .anchor = 5}})[0].logits, draft.logits))
        << chunk;
  }
}

inline void batches_do_not_mix(TestModel& model) {
  const TestSequence a = model.sequence(prompt(60, 1)), b = model.sequence(prompt(33, 2)),
                     c = model.sequence(prompt(90, 3));
  const std::vector<float> alone_a = model.prefill(a), alone_b = model.prefill(b), alone_c = model.prefill(c);
  const Proposal draft_b = model.propose({{.slot = b.slot, .last_pos = 32, .anchor = 9}})[0];
  // Prefill of a beside the decoding of b, then c with both; odd positions keep groups open across steps.
  model.restart();
  const TestSequence a2 = model.sequence(a.ids), b2 = model.sequence(b.ids), c2 = model.sequence(c.ids);
  std::vector<float> step =
      model.forward({{.sequence = &b2, .begin = 0, .end = 31}, {.sequence = &a2, .begin = 0, .end = 17}});
  EXPECT_TRUE(same_bits(rows_of(step, 0, 31), rows_of(alone_b, 0, 31)));
  EXPECT_TRUE(same_bits(rows_of(step, 31, 48), rows_of(alone_a, 0, 17)));
  step = model.forward({{.sequence = &a2, .begin = 17, .end = 59},
                        {.sequence = &b2, .begin = 31, .end = 32},
                        {.sequence = &c2, .begin = 0, .end = 90}});
  EXPECT_TRUE(same_bits(rows_of(step, 0, 42), rows_of(alone_a, 17, 59)));
  EXPECT_TRUE(same_bits(rows_of(step, 42, 43), rows_of(alone_b, 31, 32)));
  EXPECT_TRUE(same_bits(rows_of(step, 43, 133), rows_of(alone_c, 0, 90)));
  step = model.forward({{.sequence = &b2, .begin = 32, .end = 33}, {.sequence = &a2, .begin = 59, .end = 60}});
  EXPECT_TRUE(same_bits(rows_of(step, 0, 1), rows_of(alone_b, 32, 33)));
  EXPECT_TRUE(same_bits(rows_of(step, 1, 2), rows_of(alone_a, 59, 60)));
  const auto drafts =
      model.propose({{.slot = a2.slot, .last_pos = 59, .anchor = 4}, {.slot = b2.slot, .last_pos = 32, .anchor = 9}});
  EXPECT_TRUE(same_bits(drafts[1].logits, draft_b.logits));
  EXPECT_TRUE(same_bits(drafts[1].confidence, draft_b.confidence));
  EXPECT_EQ(drafts[1].tokens, draft_b.tokens);
}

inline void rejected_rows_leave_no_trace(TestModel& model) {
  const std::vector<int32_t> ids = prompt(60);
  const TestSequence clean = model.sequence(ids);
  const std::vector<float> want = model.prefill(clean);
  for (int64_t rows = 2; rows <= 6; ++rows) {
    model.restart();
    TestSequence s = model.sequence(ids), wrong = s;
    model.forward({{.sequence = &s, .begin = 0, .end = 30}});
    for (int64_t pos = 30, accepted = 1; pos < 54; pos += accepted, accepted = accepted % rows + 1) {
      // One right token, then drafts of which `accepted - 1` are right.
      wrong.ids = ids;
      for (int64_t p = pos + accepted; p < pos + rows; ++p) wrong.ids[static_cast<size_t>(p)] = 3;
      const std::vector<float> step = model.forward({{.sequence = &wrong, .begin = pos, .end = pos + rows}});
      EXPECT_TRUE(same_bits(rows_of(step, 0, accepted), rows_of(want, pos, pos + accepted)))
          << rows << " rows at " << pos;
      model.propose({{.slot = s.slot, .last_pos = pos + accepted - 1, .anchor = 8}});
    }
  }
}

}  // namespace deepinfer::model
