#include "sched/draft_planner.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "sched/calibration.h"

namespace deepinfer::sched {
namespace {

std::vector<DraftQuery> queries_of(const std::vector<std::vector<float>>& survivals) {
  std::vector<DraftQuery> q;
  for (std::size_t i = 0; i < survivals.size(); ++i)
    q.push_back({.seq = static_cast<int32_t>(i),
                 .limit = static_cast<int>(survivals[i].size()),
                 .survivals = survivals[i],
                 .length = 500});
  return q;
}

TEST(CostModel, LearnsFromStepsOfDifferentShapes) {
  CostModel model({.num_experts = 64, .experts_per_token = 4});
  std::mt19937 rng(1);
  auto truth = [](int rows, double bytes) {
    return 7 + 0.11 * rows + 0.4 * bytes * 1e-9 + 12 * expected_distinct_experts(64, 4, rows) / 64;
  };
  for (int i = 0; i < 600; ++i) {
    int rows = static_cast<int>(std::exp2(static_cast<double>(rng() % 766) / 100));  // 1 .. 201
    double bytes = static_cast<double>(rng() % 1000) * 1e7;
    model.observe({rows, bytes}, truth(rows, bytes) * (0.98 + 0.04 * (rng() % 100) / 100));
  }
  for (int rows : {1, 5, 30, 100, 200})
    for (double bytes : {0.0, 5e9})
      EXPECT_NEAR(model.predict({rows, bytes}), truth(rows, bytes), 0.06 * truth(rows, bytes)) << rows;
  EXPECT_LT(model.recent_error(), 0.04);
}

// Another program takes the processor for a while: one step of six times the time must not change what the size costs.
TEST(CostModel, AStepThatWasHeldUpSaysLittleAndALastingChangeIsFollowed) {
  CostModel model({});
  for (int i = 0; i < 40; ++i) model.observe({1 + 5 * (i % 2), 0}, i % 2 == 0 ? 1.0 : 2.0);
  const double before = model.predict({6, 0});
  model.observe({6, 0}, 12.0);
  EXPECT_LT(model.predict({6, 0}), 1.05 * before);
  for (int i = 0; i < 100; ++i) model.observe({6, 0}, 4.0);
  EXPECT_NEAR(model.predict({6, 0}), 4.0, 0.2);
}

TEST(CostModel, ProfiledStepsAreTheBaseAndPaddingIsPaidFor) {
  CostModel model({}, {{4, 10.0}, {8, 11.0}, {16, 20.0}});
  EXPECT_DOUBLE_EQ(model.predict({5, 0}), 11.0);
  EXPECT_DOUBLE_EQ(model.predict({8, 0}), 11.0);
  EXPECT_EQ(model.table(4, 4, 0, 1.0).back(), 0.0) << "20 rows exceed the largest step";
}

TEST(CostModel, ExpertsSaturate) {
  EXPECT_NEAR(expected_distinct_experts(256, 8, 1), 8, 1e-9);
  EXPECT_GT(expected_distinct_experts(256, 8, 96), 240);
}

// So many sequences that a round speaks for itself.
std::vector<std::vector<float>> crowd(const std::vector<float>& survivals) {
  return std::vector<std::vector<float>>(128, survivals);
}

TEST(DraftPlanner, BudgetComesFromTheRoundBefore) {
  CostModel cost({.fixed_ms = 1, .ms_per_row = 1, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 2, .mode = DraftMode::kScheduled, .explore_share = 0}, cost);
  std::vector<int> drafts(128);
  auto low = crowd({0.01f, 0.005f}), high = crowd({1.0f, 1.0f});
  planner.plan(queries_of(low), drafts);
  EXPECT_EQ(planner.plan(queries_of(high), drafts).total_rows, 128) << "the round before was hopeless";
  EXPECT_EQ(planner.plan(queries_of(low), drafts).total_rows, 384) << "the round before was sure";
}

TEST(DraftPlanner, NewestSurvivalsDecideTheSplitOnly) {
  CostModel cost({.fixed_ms = 4, .ms_per_row = 1, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 2, .mode = DraftMode::kScheduled, .explore_share = 0}, cost);
  std::vector<int> drafts(2);
  for (int round = 0; round < 50; ++round) planner.plan(queries_of({{0.9f, 0.8f}, {0.1f, 0.0f}}), drafts);
  auto d = planner.plan(queries_of({{0.1f, 0.0f}, {0.9f, 0.8f}}), drafts);
  EXPECT_EQ(d.total_rows, 4);
  EXPECT_EQ(drafts, (std::vector<int>{0, 2}));
}

TEST(DraftPlanner, DraftIndependentSequencesUseTheNewest) {
  CostModel cost({.fixed_ms = 1, .ms_per_row = 1, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 1, .mode = DraftMode::kScheduled, .explore_share = 0}, cost);
  std::vector<int> drafts(128);
  auto sure = crowd({1.0f});
  auto q = queries_of(sure);
  for (DraftQuery& query : q) query.is_draft_independent = true;
  planner.plan(queries_of(crowd({0.0f})), drafts);
  EXPECT_EQ(planner.plan(q, drafts).total_rows, 256);
}

TEST(DraftPlanner, OneRoundOfOneSequenceDecidesLittle) {
  CostModel cost({.fixed_ms = 1, .ms_per_row = 1, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 2, .mode = DraftMode::kScheduled, .explore_share = 0}, cost);
  std::vector<int> drafts(1);
  for (int round = 0; round < 20; ++round) planner.plan(queries_of({{0.95f, 0.9f}}), drafts);
  planner.plan(queries_of({{0.0f, 0.0f}}), drafts);
  EXPECT_EQ(planner.plan(queries_of({{0.95f, 0.9f}}), drafts).total_rows, 3);
}

TEST(DraftPlanner, StaysAtFixedWidthWhereRowsAreFree) {
  CostModel cost({.fixed_ms = 10, .ms_per_row = 0, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 5, .explore_share = 0}, cost);
  std::vector<int> drafts(4);
  std::vector<std::vector<float>> s(4, {0.8f, 0.6f, 0.5f, 0.4f, 0.3f});
  for (int step = 0; step < 50; ++step) {
    auto d = planner.plan(queries_of(s), drafts);
    EXPECT_EQ(d.kind, DraftDecision::Kind::kFixed);
    EXPECT_EQ(d.width, 5);
  }
}

TEST(DraftPlanner, TurnsDraftsOffWhereRowsCostMoreThanTheyBring) {
  CostModel cost({.fixed_ms = 0.01, .ms_per_row = 1, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 3, .explore_share = 0}, cost);
  planner.observe_draft_pass(2, 0.5);
  std::vector<int> drafts(2);
  DraftDecision d;
  for (int round = 0; round < 30; ++round)
    d = planner.plan(queries_of({{0.3f, 0.1f, 0.0f}, {0.3f, 0.1f, 0.0f}}), drafts);
  EXPECT_EQ(d.kind, DraftDecision::Kind::kOff);
  EXPECT_FALSE(d.wants_drafts);
  EXPECT_EQ(drafts, (std::vector<int>{0, 0}));
}

// While drafts are off nothing tells that they have become good, unless one step drafts and the next verifies; the
// share of the time that these may lose is kept.
TEST(DraftPlanner, TriesDraftsWhileTheyAreOffAndComesBack) {
  constexpr double kShare = 0.02, kFixedMs = 1.0, kRowMs = 0.5, kPassMs = 0.5;
  CostModel cost({.fixed_ms = kFixedMs, .ms_per_row = kRowMs, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 3, .explore_share = kShare}, cost);
  std::vector<int> drafts(1);
  bool has_drafts = false;
  double ms = 0;
  double lost = 0;  // rows and draft passes more, and the time of the accepted tokens less
  DraftDecision d;
  auto step = [&](const std::vector<float>& survivals) {
    d = planner.plan(queries_of({has_drafts ? survivals : std::vector<float>()}), drafts);
    has_drafts = d.wants_drafts;
    double forward = kFixedMs + kRowMs * (1 + drafts[0]);
    cost.observe({1 + drafts[0], 0}, forward);
    if (has_drafts) planner.observe_draft_pass(1, kPassMs);
    ms += forward + (has_drafts ? kPassMs : 0);
    if (d.is_exploring) lost += kRowMs * drafts[0] + kPassMs - static_cast<double>(survivals[0]) * (kFixedMs + kRowMs);
  };
  for (int i = 0; i < 2000; ++i) step({0.2f, 0.0f, 0.0f});
  EXPECT_EQ(d.kind, DraftDecision::Kind::kOff);
  EXPECT_GT(lost, 3 * kPassMs);
  EXPECT_LT(lost, 1.5 * kShare * ms) << "what is expected is not exact";
  for (int i = 0; i < 1000; ++i) step({1.0f, 1.0f, 1.0f});
  EXPECT_NE(d.kind, DraftDecision::Kind::kOff);
}

// A machine whose rows cost nothing up to three and much beyond: what it takes to know that is tried, within bounds.
TEST(DraftPlanner, TriesSizesThatCouldPayAndSpendsLittle) {
  CostModel cost({});
  DraftPlanner planner({.max_draft = 3, .explore_share = 0.02}, cost);
  std::vector<int> drafts(1);
  auto machine = [](int rows) { return rows <= 3 ? 10.0 : 20.0; };
  auto rate = [&](int width) { return (1 + 0.9 * width) / machine(1 + width); };
  double ms = 0, tokens = 0, tried_ms = 0;
  int last = 0;
  for (int step = 0; step < 400; ++step) {
    auto d = planner.plan(queries_of({{0.9f, 0.9f, 0.9f}}), drafts);
    cost.observe({1 + drafts[0], 0}, machine(1 + drafts[0]));
    ms += machine(1 + drafts[0]), tokens += 1 + 0.9 * drafts[0];
    if (d.is_exploring) tried_ms += machine(1 + drafts[0]);
    last = d.width;
  }
  EXPECT_EQ(last, 2);
  EXPECT_GT(tried_ms, 0);
  EXPECT_GE(tokens / ms, 0.9 * rate(2));
}

TEST(DraftPlanner, TriesNothingThatCannotPay) {
  CostModel cost({.fixed_ms = 10, .ms_per_row = 0.01, .ms_all_experts = 0});
  DraftPlanner planner({.max_draft = 3}, cost);
  std::vector<int> drafts(1);
  for (int step = 0; step < 400; ++step) {
    auto d = planner.plan(queries_of({{0.9f, 0.8f, 0.7f}}), drafts);
    cost.observe({1 + drafts[0], 0}, 10.0 + 0.01 * (1 + drafts[0]));
    EXPECT_NE(d.kind, DraftDecision::Kind::kOff) << "one token in nine tenths of the time of three";
  }
}

TEST(Calibration, AnOverconfidentHeadIsCorrectedPerPositionAndTemperature) {
  Calibration calibration(2, {}, false);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(1, 2);
  auto truth = [](int position, float logit) {
    return 1 / (1 + std::exp(-(logit / (position == 0 ? 2.0f : 1.5f) - 0.5f)));
  };
  for (int i = 0; i < 60000; ++i) {
    float logit = normal(rng);
    int position = static_cast<int>(rng() % 2);
    calibration.observe(position, 1.0, logit, truth(position, logit));
  }
  double off = 0;
  for (int i = 0; i < 1000; ++i) {
    float logit = normal(rng);
    off += std::abs(calibration.confidence(i % 2, 1.0, logit) - truth(i % 2, logit)) / 1000;
  }
  EXPECT_LT(off, 0.01);
  EXPECT_FLOAT_EQ(calibration.confidence(0, 0.0, 0.0f), 0.5f) << "other temperatures are untouched";
}

TEST(Calibration, AHeadThatIsFarOffIsCorrectedWithinTensOfLabels) {
  Calibration calibration(1, {}, false);
  for (int i = 0; i < 20; ++i) calibration.observe(0, 0.0, 5.0f + 0.1f * static_cast<float>(i % 7), 0.0f);
  EXPECT_LT(calibration.confidence(0, 0.0, 5.0f), 0.1f);
  for (int i = 0; i < 60; ++i) calibration.observe(0, 0.0, 5.0f + 0.1f * static_cast<float>(i % 7), 1.0f);
  EXPECT_GT(calibration.confidence(0, 0.0, 5.0f), 0.6f) << "and back, when the domain changes";
}

TEST(Calibration, FrozenOneMeasuresButDoesNotMove) {
  std::vector<double> temperatures = {2.0};
  Calibration calibration(1, temperatures, true);
  for (int i = 0; i < 1000; ++i) calibration.observe(0, 1.0, 4.0f, 0.0f);
  EXPECT_FLOAT_EQ(calibration.confidence(0, 1.0, 4.0f), 1 / (1 + std::exp(-2.0f)));
  EXPECT_NEAR(calibration.error(), 1 / (1 + std::exp(-2.0f)), 1e-6);  // from the first label on
}

}  // namespace
}  // namespace deepinfer::sched
