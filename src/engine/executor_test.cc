// What the executor does with a plan that does not fit its state, on the random fixture.
#include "engine/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backend.h"
#include "model/ranks.h"

namespace deepinfer::engine {
namespace {

class ExecutorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = weights::Checkpoint::open(DI_SOURCE_DIR "/tests/golden/random-small/checkpoint");
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    for (int id = 0; id < checkpoint->config().vocab_size; ++id)
      compressed_ids_.push_back(id % static_cast<int>(checkpoint->config().engram_compressed_vocab_size));
    model::RanksOptions options{.make_ops = choose_backend("fast", "ref")->make_ops,
                                .threads = 1,
                                .num_blocks = 9,
                                .num_slots = 3,
                                .model = {.limits = {.max_rows = 16, .max_sequences = 2, .max_positions = 512},
                                          .compressed_ids = compressed_ids_}};
    auto ranks = model::Ranks::create(*checkpoint, std::move(options));
    ASSERT_TRUE(ranks) << ranks.error().message;
    ranks_ = std::move(*ranks);
    model::Rank& rank = (*ranks_)[0];
    auto executor = Executor::create({.model = rank.model.get(),
                                      .global = &rank.global,
                                      .states = &rank.states,
                                      .device = rank.device.get(),
                                      .stream = rank.stream.get(),
                                      .compressed_ids = &compressed_ids_,
                                      .max_rows = 16,
                                      .max_logit_rows = 16,
                                      .max_sequences = 2});
    ASSERT_TRUE(executor) << executor.error().message;
    executor_ = std::move(*executor);
  }

  std::vector<int32_t> compressed_ids_;
  std::unique_ptr<model::Ranks> ranks_;
  std::unique_ptr<Executor> executor_;
};

sched::PlannedRun prefill(int seq, int slot, int32_t block) {
  return {.seq = sched::SeqId{seq}, .slot = slot, .rows = 3, .sample = true, .new_blocks = {block}};
}

// After a failed step the plans that were made before it was known may hold runs of sequences that never started.
TEST_F(ExecutorTest, RunsOfUnknownSequencesFailAlone) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->params.is_greedy = spec->draft_params.is_greedy = true;
  spec->prompt_length = 3;
  spec->max_total = 8;
  StepJob job;
  job.plan.starts = {{.seq = sched::SeqId{1}, .slot = 1, .known_tokens = 3}};
  job.plan.runs = {prefill(7, 2, 2), prefill(1, 1, 1)};
  job.starts = {{.tokens = {5, 6, 7}, .spec = spec}};
  StepResult result = executor_->execute(std::move(job));
  ASSERT_EQ(result.runs.size(), 2u);
  EXPECT_EQ(result.runs[0].seq, sched::SeqId{1});
  EXPECT_FALSE(result.runs[0].error);
  EXPECT_EQ(result.runs[0].tokens.size(), 1u);
  EXPECT_EQ(result.runs[1].seq, sched::SeqId{7});
  ASSERT_TRUE(result.runs[1].error);
  EXPECT_THAT(result.runs[1].error->message, testing::HasSubstr("failed"));

  StepJob lost;
  lost.plan.runs = {prefill(8, 2, 2)};
  EXPECT_EQ(executor_->execute(std::move(lost)).runs.size(), 1u);
}

}  // namespace
}  // namespace deepinfer::engine
