#include "sched/verification_budget.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/testing/runtime_cases.h"
#include "sched/cost_model.h"

namespace deepinfer::sched {
namespace {

using testing_cases::name_of;
using testing_cases::number;
using testing_cases::numbers;
using testing_cases::runtime_cases;

std::vector<Tier> tiers_of(const json::value& curve) {
  std::vector<Tier> tiers;
  for (const auto& pair : curve.as_array()) {
    auto p = numbers<double>(pair);
    tiers.push_back({static_cast<int>(p[0]), p[1]});
  }
  return tiers;
}

// A table of survivals; null rows are unknown.
Survivals survivals_of(const json::value& rows, int max_draft, const json::array* has_draft = nullptr) {
  auto s = Survivals::zeros(static_cast<int>(rows.as_array().size()), max_draft);
  for (int i = 0; i < s.num_seqs; ++i) {
    const auto& row = rows.as_array()[static_cast<std::size_t>(i)];
    if (row.is_null()) {
      s.set_unknown(i, (*has_draft)[static_cast<std::size_t>(i)].as_bool());
    } else {
      std::ranges::copy(numbers<double>(row), s.of(i).begin());
    }
  }
  return s;
}

TEST(BudgetCases, ConfidenceScheduling) {
  for (const auto& c : runtime_cases("confidence_scheduling")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    int n = number<int>(in, "max_draft");
    const auto& has_draft = in.at("has_draft").as_array();
    Survivals older = survivals_of(in.at("budget_survival"), n, &has_draft),
              newer = survivals_of(in.at("rank_survival"), n, &has_draft);
    auto cost = staircase_cost(tiers_of(in.at("curve")), number<double>(in, "slope_ms_per_row"),
                               number<double>(in, "fixed_ms"), older.num_seqs, n);
    Budget got = choose_rows(older, cost, true);
    EXPECT_EQ(got.total_rows, number<int>(want, "total_q")) << name_of(c);
    EXPECT_EQ(split_rows(newer, got.total_rows), numbers<int>(want.at("seqlens_q"))) << name_of(c);
    const auto& trace = want.at("throughput_trace").as_array();
    ASSERT_EQ(got.trace.size(), trace.size()) << name_of(c);
    for (std::size_t i = 0; i < trace.size(); ++i) {
      auto pair = numbers<double>(trace[i]);
      EXPECT_EQ(got.trace[i].first, static_cast<int>(pair[0])) << name_of(c);
      EXPECT_NEAR(got.trace[i].second, pair[1], 1e-6) << name_of(c);
    }
  }
}

TEST(BudgetCases, ConfidenceSchedulingEarlyStop) {
  for (const auto& c : runtime_cases("confidence_scheduling_early_stop")) {
    const auto& in = c.at("inputs");
    int n = number<int>(in, "max_draft");
    Survivals s = survivals_of(in.at("survival"), n);
    auto cost = staircase_cost(tiers_of(in.at("curve")), 0, 0, s.num_seqs, n);
    EXPECT_EQ(early_stop_rows(s, cost), numbers<int>(c.at("expected").at("seqlens_q"))) << name_of(c);
  }
}

TEST(BudgetCases, DeviceReallocation) {
  for (const auto& c : runtime_cases("device_reallocation")) {
    const auto& in = c.at("inputs");
    const auto& rows = in.at("previous_conditional_confidence").as_array();
    auto previous = Survivals::zeros(static_cast<int>(rows.size()), number<int>(in, "max_draft"));
    for (std::size_t i = 0; i < rows.size(); ++i)
      previous.set_from_confidences(static_cast<int>(i), numbers<float>(rows[i]));
    EXPECT_EQ(reallocate_rows(numbers<int>(in.at("remap")), previous, number<int>(in, "total_q")),
              numbers<int>(c.at("expected").at("seqlens_q")))
        << name_of(c);
  }
}

TEST(BudgetCases, RuntimeEstimators) {
  for (const auto& c : runtime_cases("runtime_estimators")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    if (want.as_object().contains("sampler_ms")) {
      SamplerTime time;
      for (const auto& h : in.at("history").as_array())
        time.observe(h.at(0).to_number<int>(), h.at(1).to_number<double>());
      EXPECT_NEAR(time.predict(number<int>(in, "num_seqs")), number<double>(want, "sampler_ms"), 1e-9) << name_of(c);
    } else {
      std::vector<Tier> profile;
      for (const auto& [rows, ms] : in.at("baseline").as_object())
        profile.push_back({std::stoi(std::string(rows)), ms.to_number<double>()});
      LiveSlope slope(profile);
      for (const auto& h : in.at("history").as_array())
        slope.observe(h.at(0).to_number<int>(), h.at(1).to_number<double>());
      EXPECT_NEAR(slope.predict(), number<double>(want, "slope_ms_per_row"), 1e-9) << name_of(c);
    }
  }
}

TEST(BudgetCases, DpJointBudget) {
  for (const auto& c : runtime_cases("dp_joint_budget")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto tiers = tiers_of(in.at("curve"));
    std::vector<Survivals> ranks;
    std::vector<double> summed(2 * tiers.size());
    for (const auto& r : in.at("ranks").as_array()) {
      const auto& rows = r.at("survival");
      ranks.push_back(survivals_of(rows, static_cast<int>(rows.at(0).as_array().size())));
      auto mine = tier_tokens(ranks.back(), tiers);
      for (std::size_t i = 0; i < summed.size(); ++i) summed[i] += mine[i];
    }
    int tier = choose_joint_tier(summed, tiers);
    ASSERT_GE(tier, 0);
    const auto& joint = want.at("joint");
    EXPECT_EQ(tiers[static_cast<std::size_t>(tier)].rows, number<int>(joint, "tier")) << name_of(c);
    EXPECT_NEAR(summed[static_cast<std::size_t>(tier)] / tiers[static_cast<std::size_t>(tier)].ms,
                number<double>(joint, "tokens_per_ms"), 1e-6)
        << name_of(c);
    std::vector<int> joint_rows, own_rows;
    double own_tokens = 0, slowest = 0;
    for (const Survivals& s : ranks) {
      joint_rows.push_back(rows_within(s, tiers[static_cast<std::size_t>(tier)].rows));
      auto cost = staircase_cost(tiers, 0, 0, s.num_seqs, s.max_draft);
      Budget own = choose_rows(s, cost);
      own_rows.push_back(own.total_rows);
      own_tokens += own.tokens;
      slowest = std::max(slowest, own.tokens / own.tokens_per_ms);
    }
    EXPECT_EQ(joint_rows, numbers<int>(joint.at("rows_per_rank"))) << name_of(c);
    EXPECT_EQ(own_rows, numbers<int>(want.at("independent").at("rows_per_rank"))) << name_of(c);
    EXPECT_NEAR(own_tokens / slowest, number<double>(want.at("independent"), "tokens_per_ms"), 1e-6) << name_of(c);
  }
}

TEST(BudgetCases, GraphSizes) {
  for (const auto& c : runtime_cases("graph_sizes"))
    EXPECT_EQ(step_sizes(number<int>(c.at("inputs"), "max_size"), number<int>(c.at("inputs"), "interval")),
              numbers<int>(c.at("expected")));
}

Survivals random_survivals(std::mt19937& rng, int num_seqs, int max_draft) {
  auto s = Survivals::zeros(num_seqs, max_draft);
  for (int i = 0; i < num_seqs; ++i) {
    std::vector<float> c;
    for (int k = 0; k < max_draft; ++k) c.push_back(static_cast<float>(rng() % 11) / 10);  // many ties, zeros and ones
    s.set_from_confidences(i, c);
  }
  return s;
}

// What losslessness rests on: whether draft k of a sequence is verified does not depend on that sequence's later
// drafts, and the total does not enter from them at all.
TEST(Budget, AdmissionOfADraftIgnoresLaterDraftsOfItsSequence) {
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    int num_seqs = 1 + static_cast<int>(rng() % 5), n = 1 + static_cast<int>(rng() % 4);
    Survivals s = random_survivals(rng, num_seqs, n);
    int total = num_seqs + static_cast<int>(rng() % static_cast<unsigned>(num_seqs * n + 1));
    auto rows = split_rows(s, total);
    int seq = static_cast<int>(rng() % static_cast<unsigned>(num_seqs)),
        k = static_cast<int>(rng() % static_cast<unsigned>(n));
    for (int later = k + 1; later < n; ++later) {
      auto row = s.of(seq);
      double limit = row[static_cast<std::size_t>(later - 1)];
      row[static_cast<std::size_t>(later)] = limit * (rng() % 2 ? 1.0 : 0.5);
    }
    auto again = split_rows(s, total);
    EXPECT_EQ(rows[static_cast<std::size_t>(seq)] > k + 1, again[static_cast<std::size_t>(seq)] > k + 1);
  }
}

TEST(Budget, SplitUsesEveryRowAndTakesPrefixes) {
  std::mt19937 rng(6);
  for (int round = 0; round < 500; ++round) {
    int num_seqs = 1 + static_cast<int>(rng() % 20), n = static_cast<int>(rng() % 6);
    Survivals s = random_survivals(rng, num_seqs, n);
    int total = num_seqs + static_cast<int>(rng() % static_cast<unsigned>(num_seqs * n + 1));
    auto rows = split_rows(s, total);
    int sum = 0;
    double kept = 2, dropped = -1;
    for (int i = 0; i < num_seqs; ++i) {
      int q = rows[static_cast<std::size_t>(i)];
      EXPECT_TRUE(q >= 1 && q <= n + 1);
      sum += q;
      if (q > 1) kept = std::min(kept, s.of(i)[static_cast<std::size_t>(q - 2)]);
      if (q <= n) dropped = std::max(dropped, s.of(i)[static_cast<std::size_t>(q - 1)]);
    }
    EXPECT_EQ(sum, total);
    EXPECT_GE(kept, dropped);
  }
}

TEST(Budget, UnreadableConfidencesCountAsZero) {
  auto s = Survivals::zeros(1, 3);
  std::vector<float> c = {0.5f, std::nanf(""), 0.9f};
  s.set_from_confidences(0, c);
  EXPECT_EQ(s.values, (std::vector<double>{0.5, 0, 0}));
  c = {1.5f, -1.0f};
  s.set_from_confidences(0, c);
  EXPECT_EQ(s.values, (std::vector<double>{1, 0, 0}));
}

}  // namespace
}  // namespace deepinfer::sched
