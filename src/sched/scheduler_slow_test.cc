// A hundred thousand requests with everything that can happen to them: random lengths, priorities, tenants, forks,
// cancellations, deadlines, failed runs, shared prefixes, too little memory, widths and draft passes chosen at random.

#include <algorithm>

#include <gtest/gtest.h>

#include "sched/testing/simulation.h"

namespace deepinfer::sched {
namespace {

// Steps take 1 ms of simulated time and priorities differ by 2 at most, so a request is overtaken by those that arrive
// within 2 x 100 ms after it and, by the fairness between tenants, by one point more: 300 ms. The rest of its wait is
// the queue that it finds; requests arrive a little slower than they are served.
constexpr int64_t kLongestWaitUs = 1'000'000;

TEST(SchedulerSimulation, AHundredThousandRequestsEndOnceAndNoneStarves) {
  constexpr int kRequests = 100'000;
  std::mt19937 rng(11);
  SchedulerConfig config = small_config();
  config.max_running = 12;
  config.num_slots = 14;
  config.max_rows = 160;
  config.ageing_us = 100'000;
  config.full_replay = 256;
  config.stores_all_layers = true;
  Simulation sim(config, 60, 11, Sharing::kPrefixCache);
  sim.fails_one_in = 5000;
  std::mt19937 policy(3);
  sim.scheduler_.set_draft_policy([&](std::span<const DraftQuery> queries, std::span<int> drafts) {
    for (size_t i = 0; i < queries.size(); ++i)
      drafts[i] = static_cast<int>(policy() % static_cast<uint32_t>(queries[i].limit + 1));
    return DraftDecision{.wants_drafts = policy() % 4 != 0};
  });

  int64_t longest_wait_us = 0;
  int ended = 0, cancelled = 0;
  std::vector<SeqId> recent;
  auto drop_ended = [&] {
    for (auto it = sim.clients_.begin(); it != sim.clients_.end();) {
      const Client& c = it->second;
      bool is_gone = c.terminals == 1 && sim.inflight_.empty();
      if (c.terminals == 1 && c.first_token_us >= 0)
        longest_wait_us = std::max(longest_wait_us, c.first_token_us - c.arrival_us);
      EXPECT_LE(c.terminals, 1);
      ended += is_gone;
      it = is_gone ? sim.clients_.erase(it) : std::next(it);
    }
  };
  for (int i = 0; i < kRequests; ++i) {
    int64_t key = rng() % 4 == 0 ? static_cast<int64_t>(rng() % 20) : 20 + i;  // a quarter repeats a few texts
    auto s = sequence(key, 1 + rng() % 250, 1 + rng() % 56, sim.now_us_);
    s.priority = static_cast<int>(rng() % 3);
    s.tenant = std::string(1, static_cast<char>('a' + rng() % 4));
    if (rng() % 20 == 0) s.deadline_us = sim.now_us_ + rng() % 400'000;
    if (rng() % 10 == 0 && !recent.empty()) {
      auto leader = sim.clients_.find(recent.back());
      if (leader != sim.clients_.end() && leader->second.terminals == 0) {
        s.leader = leader->first;
        s.tokens.assign(leader->second.tokens.begin(),
                        leader->second.tokens.begin() + static_cast<std::ptrdiff_t>(leader->second.prompt));
        s.max_total = leader->second.max_total;
        key = leader->second.key;
      }
    }
    recent.push_back(sim.add(std::move(s), key));
    if (recent.size() > 50) recent.erase(recent.begin());
    if (rng() % 25 == 0) sim.scheduler_.cancel(recent[rng() % recent.size()]), ++cancelled;
    for (uint32_t k = 1 + rng() % 2; k > 0; --k) sim.step();
    if (i % 1000 == 999) {
      while (!sim.inflight_.empty()) sim.execute_oldest();
      drop_ended();
    }
  }
  ASSERT_TRUE(sim.finish(2'000'000));
  sim.inflight_.clear();
  EXPECT_EQ(sim.ledger_->num_available(), sim.num_blocks_);
  drop_ended();
  EXPECT_TRUE(sim.clients_.empty());
  EXPECT_EQ(ended, kRequests);
  EXPECT_GT(cancelled, 1000);
  EXPECT_GT(sim.num_resumed, 1000);
  EXPECT_GT(sim.num_from_windows, 1000);
  std::printf("longest wait for a first token: %.3f s of %.0f s simulated, %d resumed\n",
              static_cast<double>(longest_wait_us) * 1e-6, static_cast<double>(sim.now_us_) * 1e-6, sim.num_resumed);
  EXPECT_LT(longest_wait_us, kLongestWaitUs);
}

}  // namespace
}  // namespace deepinfer::sched
