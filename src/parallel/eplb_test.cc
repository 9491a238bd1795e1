#include "parallel/eplb.h"

#include <cmath>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/testing/runtime_cases.h"

namespace deepinfer::parallel {
namespace {

using testing_cases::name_of;
using testing_cases::number;
using testing_cases::numbers;
using testing_cases::runtime_cases;
using testing_cases::table;

TEST(EplbCases, Placement) {
  for (const auto& c : runtime_cases("eplb_placement")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto loads = table<double>(in.at("tokens_per_step"));
    auto map = balance(loads, number<int>(in, "num_physical"), number<int>(in, "slots_per_rank"));
    ASSERT_TRUE(map) << name_of(c);
    EXPECT_EQ(map->physical_to_logical, numbers<int>(want.at("physical_to_logical"))) << name_of(c);
    EXPECT_EQ(map->logical_to_physical, table<int>(want.at("logical_to_physical"))) << name_of(c);
    std::vector<int> counts;
    for (const auto& slots : map->logical_to_physical) counts.push_back(static_cast<int>(slots.size()));
    EXPECT_EQ(counts, numbers<int>(want.at("replica_count"))) << name_of(c);
    auto got = rank_loads(*map, loads), expected = table<double>(want.at("rank_load"));
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t r = 0; r < got.size(); ++r)
      for (std::size_t t = 0; t < got[r].size(); ++t) EXPECT_NEAR(got[r][t], expected[r][t], 1e-9) << name_of(c);
    EXPECT_NEAR(sum_of_step_peaks(*map, loads), number<double>(want, "sum_of_step_peaks"), 1e-9) << name_of(c);
  }
}

TEST(EplbCases, Initial) {
  for (const auto& c : runtime_cases("eplb_initial")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    if (want.as_object().contains("extra")) {
      EXPECT_EQ(
          num_spare_slots(number<int>(in, "routed"), number<int>(in, "minimum_extra"), number<int>(in, "ep_size")),
          number<int>(want, "extra"));
    } else {
      EXPECT_EQ(initial_slots(number<int>(in, "routed"), number<int>(in, "extra")),
                numbers<int>(want.at("physical_to_logical")));
    }
  }
}

TEST(EplbCases, Routes) {
  for (const auto& c : runtime_cases("eplb_routes")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto origin = numbers<int>(in.at("origin")), target = numbers<int>(in.at("current"));
    ExpertRoute got = route_expert(origin, target, number<int>(in, "slots_per_rank"), number<int>(in, "expert"));
    std::vector<std::vector<int>> senders, pairing;
    for (const SlotRef& s : got.senders) senders.push_back({s.rank, s.slot});
    for (auto [receiver, sender] : got.pairing) pairing.push_back({receiver, sender});
    EXPECT_EQ(senders, table<int>(want.at("senders"))) << name_of(c);
    EXPECT_EQ(got.receivers, numbers<int>(want.at("receivers"))) << name_of(c);
    EXPECT_EQ(pairing, table<int>(want.at("pairing"))) << name_of(c);
  }
}

TEST(Eplb, RandomLoadsGiveCompleteMapsThatAreNoWorseThanTheInitialOne) {
  std::mt19937 rng(4);
  for (int round = 0; round < 200; ++round) {
    int ranks = 1 + static_cast<int>(rng() % 8), experts = ranks + static_cast<int>(rng() % 40);
    int spare = num_spare_slots(experts, static_cast<int>(rng() % 5), ranks), physical = experts + spare;
    ExpertLoads loads(1 + rng() % 4, std::vector<double>(static_cast<std::size_t>(experts)));
    for (auto& step : loads)
      for (double& v : step) v = std::pow(static_cast<double>(rng() % 1000) / 1000, 4) * 1000;
    auto map = balance(loads, physical, physical / ranks);
    ASSERT_TRUE(map);
    std::set<int> present(map->physical_to_logical.begin(), map->physical_to_logical.end());
    EXPECT_EQ(static_cast<int>(present.size()), experts);
    for (int e = 0; e < experts; ++e)
      for (int p : map->logical_to_physical[static_cast<std::size_t>(e)])
        EXPECT_EQ(map->physical_to_logical[static_cast<std::size_t>(p)], e);
    auto initial = ExpertMap::from_slots(initial_slots(experts, spare), experts, physical / ranks);
    EXPECT_LE(sum_of_step_peaks(*map, loads), 1.35 * sum_of_step_peaks(initial, loads))
        << "greedy is not optimal, but not far off";

    // Carry the moves out on labels: the result is the target.
    MovePlan moves = plan_moves(initial.physical_to_logical, map->physical_to_logical, physical / ranks);
    auto slot = [&](const SlotRef& s) { return static_cast<std::size_t>(s.rank * (physical / ranks) + s.slot); };
    std::vector<int> before = initial.physical_to_logical, after = before;
    for (const auto& list : {moves.local, moves.remote}) {
      for (const Transfer& t : list) after[slot(t.to)] = before[slot(t.from)];
    }
    for (const Transfer& t : moves.local_after) after[slot(t.to)] = after[slot(t.from)];
    EXPECT_EQ(after, map->physical_to_logical);
    std::set<std::pair<int, int>> sent;
    for (const Transfer& t : moves.remote)
      EXPECT_TRUE(sent.insert({t.expert, t.to.rank}).second) << "one transfer a (expert, rank)";
  }
}

TEST(Eplb, MovesOnlyWhenTheyPay) {
  ExpertLoads loads = {{100, 1, 100, 1}};
  auto current = ExpertMap::from_slots({0, 2, 1, 3}, 4, 2);
  auto next = balance(loads, 4, 2).value();
  EXPECT_TRUE(is_worth_moving(current, next, loads, 0.01, 5.0, 1000));
  EXPECT_FALSE(is_worth_moving(current, next, loads, 0.01, 5.0, 5));
  EXPECT_FALSE(is_worth_moving(next, next, loads, 0.01, 5.0, 1000));
}

TEST(Eplb, RefusesWhatCannotBePlaced) {
  EXPECT_EQ(balance({{1, 2, 3}}, 2, 1).error().message, "2 slots for 3 experts");
  EXPECT_EQ(balance({{1, 2, 3}}, 5, 2).error().message, "5 slots do not divide into ranks of 2");
  EXPECT_FALSE(balance({}, 2, 1));
  EXPECT_FALSE(balance({{1, 2}, {1}}, 2, 1));
}

}  // namespace
}  // namespace deepinfer::parallel
