#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "base/math.h"
#include "sched/testing/simulation.h"

namespace deepinfer::sched {
namespace {

TEST(Scheduler, MixesDecodesAndChunksWithinTheRowBudget) {
  Simulation sim(small_config(), 100, 1);
  for (int k = 0; k < 20; ++k) sim.add(sequence(k, 100 + 13 * k, 30), k);
  ASSERT_TRUE(sim.finish());
  EXPECT_LE(sim.max_rows_seen, 64);
  sim.expect_everything_returned();
  for (auto& [id, c] : sim.clients_) {
    ASSERT_EQ(static_cast<int64_t>(c.tokens.size()), c.max_total);
    for (size_t i = 0; i < c.tokens.size(); ++i) ASSERT_EQ(c.tokens[i], token_at(c.key, static_cast<int64_t>(i)));
  }
}

TEST(Scheduler, ANewRequestRunsAtTheNextStepBesideDecodes) {
  Simulation sim(small_config(), 100, 1);
  sim.add(sequence(1, 10, 500), 1);
  for (int i = 0; i < 5; ++i) sim.step();
  SeqId late = sim.add(sequence(2, 10, 5), 2);
  StepPlan plan = sim.scheduler_.plan(10000);
  ASSERT_EQ(plan.runs.size(), 2u);
  EXPECT_TRUE(plan.runs[0].decode);
  EXPECT_EQ(plan.runs[1].seq, late);
}

TEST(Scheduler, StepsWithoutRowsForAllPromptsVerifyFewerDrafts) {
  Simulation sim(small_config(), 100, 1);  // 64 rows, 5 drafts
  for (int k = 0; k < 4; ++k) sim.add(sequence(k, 10, 500), k);
  for (int i = 0; i < 5; ++i) sim.step();
  auto decode_rows = [&] {
    sim.step();
    std::vector<int> rows;
    for (const PlannedRun& r : sim.inflight_.back().runs) {
      if (r.decode) rows.push_back(r.rows);
    }
    return rows;
  };
  sim.scheduler_.limit_crowded_drafts(2);
  EXPECT_EQ(decode_rows(), (std::vector{6, 6, 6, 6})) << "no prompt wants the rows";
  sim.add(sequence(8, 40, 5), 8);
  EXPECT_EQ(decode_rows(), (std::vector{6, 6, 6, 6})) << "all fits";
  sim.add(sequence(9, 200, 5), 9);
  EXPECT_EQ(decode_rows(), (std::vector{3, 3, 3, 3, 3}));
  EXPECT_EQ(sim.inflight_.back().num_rows, 64);
  sim.scheduler_.limit_crowded_drafts(5);
  EXPECT_EQ(decode_rows().at(0), 6);
  ASSERT_TRUE(sim.finish());
  sim.expect_everything_returned();
}

TEST(Scheduler, PreemptsTheYoungestAndEveryoneFinishes) {
  Simulation sim(small_config(), 12, 3);  // far too few blocks for all
  for (int k = 0; k < 8; ++k) sim.add(sequence(k, 200, 800, k), k);
  ASSERT_TRUE(sim.finish());
  sim.expect_everything_returned();
  for (auto& [id, c] : sim.clients_) EXPECT_EQ(static_cast<int64_t>(c.tokens.size()), c.max_total);
}

TEST(Scheduler, RefusesWhatCouldNeverFinishWithBothNumbers) {
  CountingLedger ledger(4);
  Scheduler s(small_config(), ledger);
  EXPECT_EQ(s.add(sequence(1, 500, 500)).error().message,
            "the request may grow to 1000 tokens, which takes 8 cache blocks; there are 4");
  EXPECT_EQ(s.add(sequence(1, 5000, 5)).error().message,
            "the prompt has 5000 tokens; the context length is 4096, one of them for the answer");
  EXPECT_FALSE(s.add(sequence(1, 0, 5)));
}

TEST(Scheduler, CancellationAndDeadlinesEndASequenceOnceInAnyState) {
  Simulation sim(small_config(), 100, 5);
  SeqId waiting = sim.add(sequence(1, 300, 50), 1);
  sim.scheduler_.cancel(waiting);
  SeqId prefilling = sim.add(sequence(2, 300, 50), 2);
  auto timed = sequence(3, 10, 4000);
  timed.deadline_us = 20000;
  sim.add(std::move(timed), 3);
  sim.step();
  sim.scheduler_.cancel(prefilling);
  ASSERT_TRUE(sim.finish());
  sim.expect_everything_returned();
}

TEST(Scheduler, HigherPriorityTakesTheSlotOfALower) {
  SchedulerConfig config = small_config();
  config.max_running = 1;
  config.num_slots = 1;
  Simulation sim(config, 100, 1);
  sim.add(sequence(1, 10, 500), 1);
  for (int i = 0; i < 3; ++i) sim.step();
  auto urgent = sequence(2, 10, 5);
  urgent.priority = 5;
  SeqId id = sim.add(std::move(urgent), 2);
  StepPlan plan = sim.scheduler_.plan(50000);
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].seq, id);
}

TEST(Scheduler, WaitingRaisesRankSoThatAStreamOfUrgentRequestsStarvesNobody) {
  SchedulerConfig config = small_config();
  config.max_running = 1;
  config.num_slots = 1;
  config.ageing_us = 10000;
  Simulation sim(config, 100, 1);
  SeqId low = sim.add(sequence(1, 10, 5), 1);
  bool done = false;
  for (int i = 0; i < 3000 && !done; ++i) {
    if (i % 3 == 0) {
      auto urgent = sequence(2 + i, 10, 5, sim.now_us_);
      urgent.priority = 3;
      sim.add(std::move(urgent), 2 + i);
    }
    sim.step();
    done = sim.clients_.at(low).terminals == 1;
  }
  EXPECT_TRUE(done);
}

TEST(Scheduler, ForksWaitForTheLeaderAndCopyOnlyThePartialBlock) {
  Simulation sim(small_config(), 100, 1);
  SeqId leader = sim.add(sequence(1, 300, 20), 1);
  auto fork = sequence(1, 300, 20);
  fork.leader = leader;
  SeqId id = sim.add(std::move(fork), 1);
  bool started = false;
  for (int i = 0; i < 50 && !started; ++i) {
    StepPlan plan = sim.scheduler_.plan(1000 * (i + 1));
    for (const auto& s : plan.starts) {
      if (s.seq != id) continue;
      started = true;
      EXPECT_EQ(s.start_pos, 299);
      EXPECT_EQ(s.blocks.size(), 3u);
      EXPECT_GE(s.copy_block_from, 1);
      EXPECT_EQ(s.copy_block_to, s.blocks[2]);
      EXPECT_GE(s.fork_slot, 1);
    }
    sim.inflight_.push_back(std::move(plan));
    sim.execute_oldest();
  }
  EXPECT_TRUE(started);
  ASSERT_TRUE(sim.finish());
  sim.expect_everything_returned();
}

// The two run together, so neither finds the other's prompt; the one that names it first is gone when its blocks are
// wanted. Then the other's must be held in the tree, or nothing of what it goes on to write could be found.
TEST(Scheduler, TheSecondOfTwoEqualPromptsIsFoundAfterTheFirstIsGone) {
  SchedulerConfig config = small_config();
  config.max_rows = 1000;
  config.num_drafts = 0;
  Simulation sim(config, 10, 1, Sharing::kPrefixCache);
  sim.add(sequence(1, 300, 2), 1);
  sim.add(sequence(1, 300, 400), 1);
  for (int i = 0; i < 6; ++i) sim.step();
  sim.add(sequence(2, 700, 10), 2);  // takes every block that is not in use
  ASSERT_TRUE(sim.finish());
  SeqId again = sim.add(sequence(1, 690, 2), 1);
  ASSERT_TRUE(sim.finish());
  EXPECT_EQ(sim.clients_.at(again).cached_tokens, 640);
  sim.expect_everything_returned();
}

// An exact run's block takes the name from a replayed one, and is evicted while the replayed one's holder goes on.
TEST(Scheduler, AChainWhoseBlockGaveWayToABetterOneIsNamedAgain) {
  SchedulerConfig config = small_config();
  config.max_rows = 1000;
  config.num_drafts = 0;
  Simulation sim(config, 13, 1, Sharing::kPrefixCache);
  auto bounded = [](int64_t key, int64_t prompt, int64_t output) {
    NewSequence s = sequence(key, prompt, output);
    s.keep_tokens = 140;
    return s;
  };
  auto exact = [&](int64_t key, int64_t prompt, int64_t output) {
    NewSequence s = bounded(key, prompt, output);
    s.reuse = ReuseMode::kExact;
    return s;
  };
  sim.add(bounded(1, 400, 1), 1);
  ASSERT_TRUE(sim.finish());
  sim.add(bounded(1, 520, 300), 1);  // two blocks hit; the others are marked as replayed
  for (int i = 0; i < 4; ++i) sim.step();
  sim.add(exact(1, 520, 1), 1);
  for (int i = 0; i < 4; ++i) sim.step();
  sim.add(bounded(2, 800, 1), 2);  // takes every block that is not in use
  ASSERT_TRUE(sim.finish());
  SeqId again = sim.add(bounded(1, 800, 2), 1);
  ASSERT_TRUE(sim.finish());
  EXPECT_EQ(sim.clients_.at(again).cached_tokens, 640);
  sim.expect_everything_returned();
}

TEST(Scheduler, AForksOutputIsFoundAgain) {
  Simulation sim(small_config(), 30, 1, Sharing::kPrefixCache);
  SeqId leader = sim.add(sequence(1, 300, 3), 1);
  NewSequence fork = sequence(1, 300, 300);
  fork.leader = leader;
  sim.add(std::move(fork), 1);
  ASSERT_TRUE(sim.finish());
  SeqId again = sim.add(sequence(1, 600, 2), 1);
  ASSERT_TRUE(sim.finish());
  EXPECT_EQ(sim.clients_.at(again).cached_tokens, 512);
}

// A deep replay of 256 rows is dearer than windows that are stored up to 256 rows before the end of the hit.
SchedulerConfig exact_config() {
  SchedulerConfig config = small_config();
  config.max_rows = 1000;
  config.producer_replay = config.full_replay = 256;
  return config;
}
NewSequence exact_sequence(int64_t key, int64_t prompt, int64_t output) {
  NewSequence s = sequence(key, prompt, output);
  s.keep_tokens = 140;
  s.reuse = ReuseMode::kExact;
  return s;
}
PlannedStart start_of(Simulation& sim, NewSequence s, int64_t key) {
  sim.add(std::move(s), key);
  sim.step();
  EXPECT_EQ(sim.inflight_.back().starts.size(), 1u);
  PlannedStart start = sim.inflight_.back().starts.at(0);
  EXPECT_TRUE(sim.finish());
  return start;
}

TEST(Scheduler, AnEqualPromptStartsFromTheWindowsThatTheFirstStored) {
  Simulation sim(exact_config(), 40, 1, Sharing::kPrefixCache);
  EXPECT_EQ(start_of(sim, exact_sequence(1, 1000, 3), 1).windows_from, -1);
  const PlannedStart again = start_of(sim, exact_sequence(1, 1000, 3), 1);
  EXPECT_EQ(again.start_pos, 768);  // 1000 - 140, rounded down
  EXPECT_GE(again.windows_from, 0);
  sim.expect_everything_returned();
}

TEST(Scheduler, TheNextTurnStartsFromTheWindowsOfTheOutput) {
  Simulation sim(exact_config(), 40, 1, Sharing::kPrefixCache);
  start_of(sim, exact_sequence(1, 300, 700), 1);  // 1000 tokens, the last of them not computed
  for (int64_t length : {1001, 1050, 1200}) {
    const PlannedStart turn = start_of(sim, exact_sequence(1, length, 1), 1);
    EXPECT_EQ(turn.start_pos, std::min<int64_t>(896, (length - 140) / 128 * 128)) << length;
    EXPECT_GE(turn.windows_from, 0) << length;
  }
  auto* index = dynamic_cast<IndexLedger*>(sim.ledger_.get());
  EXPECT_LE(index->index().stats().windows_stored, 9);
  sim.expect_everything_returned();
}

// The first replay that ends where two prompts part stores the windows there.
TEST(Scheduler, ThePartingPointOfTwoPromptsIsReplayedOnce) {
  Simulation sim(exact_config(), 60, 1, Sharing::kPrefixCache);
  auto with_ending = [](int64_t ending) {
    NewSequence s = exact_sequence(1, 1300, 1);
    for (int64_t at = 700; at < 1300; ++at) s.tokens[static_cast<size_t>(at)] = token_at(ending, at);
    return s;
  };
  EXPECT_EQ(start_of(sim, with_ending(5), 5).start_pos, 0);
  EXPECT_EQ(start_of(sim, with_ending(6), 6).start_pos, 640 - 256);
  const PlannedStart third = start_of(sim, with_ending(7), 7);
  EXPECT_EQ(third.start_pos, 640);
  EXPECT_GE(third.windows_from, 0);
  sim.expect_everything_returned();
}

TEST(Scheduler, WindowsOfOneHalfServeNoSequenceWithoutTruncationAndBoundedOnesReplay) {
  for (bool stores_all_layers : {false, true}) {
    SchedulerConfig config = exact_config();
    config.stores_all_layers = stores_all_layers;
    Simulation sim(config, 40, 1, Sharing::kPrefixCache);
    NewSequence whole = sequence(1, 1000, 3), bounded = exact_sequence(1, 1000, 3);
    bounded.reuse = ReuseMode::kBounded;
    start_of(sim, whole, 1);
    const PlannedStart again = start_of(sim, whole, 1);
    EXPECT_EQ(again.windows_from >= 0, stores_all_layers);
    EXPECT_EQ(again.start_pos, stores_all_layers ? 896 : 896 - 256);
    const PlannedStart replay = start_of(sim, bounded, 1);
    EXPECT_EQ(replay.windows_from, -1);
    EXPECT_EQ(replay.start_pos, 768 - 128);
  }
}

// The longest sequence in exactly the blocks that it needs: no more are taken, each is told to the executor once, and
// the prompt is found again whole.
TEST(Scheduler, AMillionTokensTakeTheBlocksThatWerePlanned) {
  SchedulerConfig config = small_config();
  config.max_rows = config.max_logit_rows = 8192;
  config.num_drafts = 0;
  config.max_length = int64_t{1} << 20;
  const int64_t slack = 2 * (config.num_drafts + 1);
  const auto num_blocks = static_cast<int>(ceil_div(config.max_length + slack, kBlockTokens));
  Simulation sim(config, num_blocks, 1, Sharing::kPrefixCache);
  sim.add(sequence(1, config.max_length - 20, 20), 1);
  ASSERT_TRUE(sim.finish());
  EXPECT_EQ(sim.num_blocks_ - sim.least_available, config.max_length / kBlockTokens);
  EXPECT_EQ(sim.table_entries_sent, config.max_length / kBlockTokens);
  const int64_t first_entries = sim.table_entries_sent;
  SeqId again = sim.add(sequence(1, config.max_length - 20, 20), 1);
  ASSERT_TRUE(sim.finish());
  EXPECT_EQ(sim.clients_.at(again).cached_tokens, config.max_length - kBlockTokens);
  EXPECT_EQ(sim.table_entries_sent - first_entries, 1);
  EXPECT_EQ(sim.num_resumed, 0);
  sim.expect_everything_returned();
}

TEST(Scheduler, RandomLoadLeaksNothingAndEndsEveryRequestOnce) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 rng(seed);
    SchedulerConfig config = small_config();
    config.num_drafts = static_cast<int>(rng() % 6);
    config.stores_all_layers = seed % 4 == 0;
    config.producer_replay = config.full_replay = 256;
    Simulation sim(config, 20 + static_cast<int>(rng() % 40), seed,
                   seed % 2 == 0 ? Sharing::kPrefixCache : Sharing::kNone);
    std::vector<SeqId> live;
    for (int i = 0; i < 200; ++i) {
      const auto key = static_cast<int64_t>(rng() % 12);  // few texts, so that prefixes are shared
      auto s = sequence(key, 1 + rng() % 600, 1 + rng() % 300, sim.now_us_);
      s.reuse = static_cast<ReuseMode>(rng() % 3);
      if (rng() % 2 == 0) s.keep_tokens = 140;
      s.priority = static_cast<int>(rng() % 3);
      s.tenant = std::string(1, static_cast<char>('a' + rng() % 3));
      if (rng() % 10 == 0) s.deadline_us = sim.now_us_ + rng() % 500000;
      live.push_back(sim.add(std::move(s), key));
      if (rng() % 8 == 0) sim.scheduler_.cancel(live[rng() % live.size()]);
      for (uint32_t k = rng() % 6; k > 0; --k) sim.step();
    }
    ASSERT_TRUE(sim.finish()) << seed;
    sim.expect_everything_returned();
    EXPECT_EQ(sim.num_from_windows > 0, seed % 2 == 0) << seed;
  }
}

}  // namespace
}  // namespace deepinfer::sched
