// The scheduler against a simulated executor: tokens come from a hash of (sequence key, position), so that any run of a
// sequence must give the same text, whatever was batched, preempted or cut.

#include "sched/scheduler.h"

#include <deque>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "sched/block_ledger.h"

namespace deepinfer::sched {
namespace {

// Blocks without a prefix cache: only the counting.
class CountingLedger final : public BlockLedger {
 public:
  explicit CountingLedger(int n) : holders_(static_cast<size_t>(n) + 1) {
    for (int32_t b = n; b >= 1; --b) free_.push_back(b);
  }
  int64_t num_blocks() const override { return static_cast<int64_t>(holders_.size()) - 1; }
  int64_t num_available() const override { return static_cast<int64_t>(free_.size()); }
  std::optional<int32_t> take() override {
    if (free_.empty()) return std::nullopt;
    int32_t b = free_.back();
    free_.pop_back();
    holders_[static_cast<size_t>(b)] = 1;
    return b;
  }
  void share(int32_t b) override { holders_[static_cast<size_t>(b)]++; }
  void give_back(int32_t b) override {
    if (--holders_[static_cast<size_t>(b)] == 0) free_.push_back(b);
  }
  PrefixHit match(std::span<const int32_t>, const std::string&, int64_t, bool) override { return {}; }
  ChainCursor open_chain(const std::string&) override { return {}; }
  void publish(ChainCursor& cursor, std::span<const int32_t>, int32_t) override { cursor.num_blocks++; }

 private:
  std::vector<int> holders_;
  std::vector<int32_t> free_;
};

int32_t token_at(int64_t key, int64_t position) {
  return static_cast<int32_t>((key * 7919 + position * 104729) % 1000);
}

struct Client {
  int64_t key = 0, prompt = 0, max_total = 0;
  std::vector<int32_t> tokens;
  int terminals = 0;
};

// Runs plans one step behind, as the engine does, with random acceptance.
class Simulation {
 public:
  Simulation(const SchedulerConfig& config, int num_blocks, uint32_t seed)
      : ledger_(num_blocks), scheduler_(config, ledger_), rng_(seed), num_blocks_(num_blocks) {}

  SeqId add(NewSequence spec, int64_t key) {
    Client c{.key = key,
             .prompt = static_cast<int64_t>(spec.tokens.size()),
             .max_total = spec.max_total,
             .tokens = spec.tokens};
    SeqId id = scheduler_.add(std::move(spec)).value();
    clients_[id] = c;
    return id;
  }

  // Plans a step, then commits the step before it.
  void step() {
    now_us_ += 1000;
    StepPlan plan = scheduler_.plan(now_us_);
    for (auto& [seq, reason] : scheduler_.take_ended()) clients_.at(seq).terminals++;
    check(plan);
    inflight_.push_back(std::move(plan));
    while (inflight_.size() > 1) execute_oldest();
    scheduler_.check_invariants();
  }
  bool finish(int max_steps = 200000) {
    while ((scheduler_.has_work() || !inflight_.empty()) && max_steps-- > 0) {
      step();
      if (inflight_.size() == 1 && inflight_.front().empty()) inflight_.pop_front();
    }
    return !scheduler_.has_work();
  }

  void check(const StepPlan& plan) {
    std::set<SeqId> seen;
    int rows = 0;
    for (const auto& r : plan.runs) {
      EXPECT_TRUE(seen.insert(r.seq).second) << describe(plan);
      rows += r.rows;
      EXPECT_GE(r.rows, 1);
    }
    EXPECT_EQ(rows, plan.num_rows);
    max_rows_seen = std::max(max_rows_seen, rows);
  }

  void execute_oldest() {
    StepPlan plan = std::move(inflight_.front());
    inflight_.pop_front();
    for (const PlannedRun& r : plan.runs) {
      auto it = clients_.find(r.seq);
      Client& c = it->second;
      RunCommit commit{.seq = r.seq, .epoch = r.epoch, .computed = r.first_pos + r.rows};
      if (r.sample) {
        int accepted = r.decode ? static_cast<int>(rng_() % static_cast<uint32_t>(r.rows)) : 0;
        commit.planned_rows = r.decode ? r.rows : 0;
        auto position = static_cast<int64_t>(c.tokens.size());
        for (int i = 0; i <= accepted && position + i < c.max_total; ++i)
          commit.tokens.push_back(token_at(c.key, position + i));
        commit.finished = position + static_cast<int64_t>(commit.tokens.size()) >= c.max_total;
      }
      if (commit.tokens.empty() && r.sample) continue;  // ran past the end: the sequence is finished already
      if (!scheduler_.commit(commit)) continue;
      c.tokens.insert(c.tokens.end(), commit.tokens.begin(), commit.tokens.end());
      if (commit.finished) c.terminals++;
    }
  }

  void expect_everything_returned() {
    EXPECT_EQ(ledger_.num_available(), num_blocks_);
    for (auto& [id, c] : clients_) EXPECT_EQ(c.terminals, 1) << static_cast<int>(id);
  }

  CountingLedger ledger_;
  Scheduler scheduler_;
  std::map<SeqId, Client> clients_;
  std::deque<StepPlan> inflight_;
  std::mt19937 rng_;
  int num_blocks_;
  int64_t now_us_ = 0;
  int max_rows_seen = 0;
};

NewSequence sequence(int64_t key, int64_t prompt, int64_t output, int64_t arrival_us = 0) {
  NewSequence s;
  for (int64_t i = 0; i < prompt; ++i) s.tokens.push_back(token_at(key, i));
  s.max_total = prompt + output;
  s.arrival_us = arrival_us;
  return s;
}

SchedulerConfig small_config() {
  return {.max_rows = 64, .max_running = 8, .num_slots = 9, .num_drafts = 5, .max_length = 4096};
}

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

TEST(Scheduler, RandomLoadLeaksNothingAndEndsEveryRequestOnce) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 rng(seed);
    SchedulerConfig config = small_config();
    config.num_drafts = static_cast<int>(rng() % 6);
    Simulation sim(config, 20 + static_cast<int>(rng() % 40), seed);
    std::vector<SeqId> live;
    for (int i = 0; i < 200; ++i) {
      auto s = sequence(i, 1 + rng() % 600, 1 + rng() % 300, sim.now_us_);
      s.priority = static_cast<int>(rng() % 3);
      s.tenant = std::string(1, static_cast<char>('a' + rng() % 3));
      if (rng() % 10 == 0) s.deadline_us = sim.now_us_ + rng() % 500000;
      live.push_back(sim.add(std::move(s), i));
      if (rng() % 8 == 0) sim.scheduler_.cancel(live[rng() % live.size()]);
      for (uint32_t k = rng() % 6; k > 0; --k) sim.step();
    }
    ASSERT_TRUE(sim.finish()) << seed;
    sim.expect_everything_returned();
  }
}

}  // namespace
}  // namespace deepinfer::sched
