// Simulated serving with injected acceptance: what the choice among off, fixed widths and scheduled is worth. The cost
// of a step is simulated (no such machine is at hand); requests, confidences and acceptance are drawn with fixed seeds.
//
//   acceptance   of each draft sigmoid(class + N(0, 1.5)), two classes of request; the head knows it exactly
//   (calibrated) mean         tokens a round with all 5 drafts verified, over rounds: 3.51 or 5.3
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "sched/draft_planner.h"

namespace deepinfer::sched {
namespace {

constexpr int kDrafts = 5;

// ms of a step of `rows`.
using Machine = std::function<double(int rows)>;

double experts(int rows) {
  return expected_distinct_experts(256, 8, rows) / 256;
}
// An accelerator whose price of a row rises with the batch, as attention and expert exchange saturate.
double saturating(int rows) {
  return 3 + 8 * experts(rows) + 0.06 * rows + 2.5e-5 * rows * rows;
}
// Weight-bound at small batches, a constant price of a row.
double linear(int rows) {
  return 9 + 4 * experts(rows) + 0.02 * rows;
}
// A CPU: nearly every row is paid for.
double compute_bound(int rows) {
  return 4 + 30 * experts(rows) + 0.9 * rows;
}

double mean_acceptance(double centre) {
  double sum = 0, weight = 0;
  for (double x = -6; x <= 6; x += 0.05) {
    double w = std::exp(-x * x / (2 * 1.5 * 1.5));
    sum += w / (1 + std::exp(-(centre + x)));
    weight += w;
  }
  return sum / weight;
}

double tokens_per_round(double centre) {
  double c = mean_acceptance(centre), survival = 1, tokens = 1;
  for (int k = 0; k < kDrafts; ++k) tokens += survival *= c;
  return tokens;
}

// Two centres `gap` apart whose requests, of equal lengths in tokens, give `mean` tokens a round together.
std::pair<double, double> centres(double mean, double gap) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    double c = (low + high) / 2;
    (2 / (1 / tokens_per_round(c) + 1 / tokens_per_round(c + gap)) < mean ? low : high) = c;
  }
  return {low, low + gap};
}

struct Policy {
  DraftMode mode;
  int fixed_width = kDrafts;  // kFixed only
};

struct Length {
  int steps, skipped;  // not counted: what has to be learned first
  unsigned seed = 0;
};

double throughput(const Machine& machine, int num_seqs, double mean, const Policy& policy, const Length& length) {
  auto [hard, easy] = centres(mean, mean > 5 ? 1.0 : 3.0);
  CostModel cost({.num_experts = 256, .experts_per_token = 8});
  DraftPlanner planner({.max_draft = kDrafts, .mode = policy.mode}, cost);
  std::mt19937 rng(static_cast<unsigned>(num_seqs) + length.seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal(0, 1.5);
  auto n = static_cast<std::size_t>(num_seqs);
  std::vector<int> left(n, 0), served(n, 0), drafts(n);
  std::vector<std::vector<float>> survivals(n);
  double ms = 0, tokens = 0;
  for (int step = 0; step < length.steps; ++step) {
    std::vector<DraftQuery> queries(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (left[i] <= 0) {
        left[i] = 150 + static_cast<int>(uniform(rng) * 100);
        ++served[i];
        survivals[i].clear();
        planner.forget(static_cast<int32_t>(i));
      }
      queries[i] = {.seq = static_cast<int32_t>(i),
                    .limit = static_cast<int>(survivals[i].size()),
                    .survivals = survivals[i],
                    .length = 1000};
    }
    DraftDecision d = planner.plan(queries, drafts);
    if (policy.mode == DraftMode::kFixed) {
      for (std::size_t i = 0; i < n; ++i) drafts[i] = std::min(policy.fixed_width, queries[i].limit);
      d.wants_drafts = policy.fixed_width > 0;
    }
    int rows = num_seqs;
    for (int count : drafts) rows += count;
    double noise = 1 + 0.01 * (uniform(rng) - 0.5), forward = machine(rows) * noise;
    double drafting = d.wants_drafts ? 0.3 + 0.03 * machine(num_seqs * kDrafts) : 0;  // 3 of 43 layers, no long context
    cost.observe({rows, 0}, forward);
    if (d.wants_drafts) planner.observe_draft_pass(num_seqs, drafting);
    int emitted = 0;
    for (std::size_t i = 0; i < n; ++i) {
      int accepted = 0;
      double before = 1;
      for (; accepted < drafts[i]; ++accepted) {
        double survival = static_cast<double>(survivals[i][static_cast<std::size_t>(accepted)]);
        if (uniform(rng) * before >= survival) break;
        before = survival;
      }
      emitted += accepted + 1;
      left[i] -= accepted + 1;
      survivals[i].clear();
      if (!d.wants_drafts) continue;
      double centre = (static_cast<int>(i) + served[i]) % 2 ? easy : hard, survival = 1;
      for (int k = 0; k < kDrafts; ++k)
        survivals[i].push_back(static_cast<float>(survival *= 1 / (1 + std::exp(-(centre + normal(rng))))));
    }
    if (step < length.skipped) continue;
    ms += forward + drafting;
    tokens += emitted;
  }
  return tokens / ms;
}

struct Sweep {
  std::vector<double> fixed;  // width 0 (off) .. 5
  double scheduled, automatic;
};

Sweep sweep(const char* name, const Machine& machine, int num_seqs, double mean) {
  int steps = num_seqs < 4 ? 60000 : num_seqs < 16 ? 25000 : num_seqs < 60 ? 8000 : 2000;
  Length length{steps, steps / 5};
  Sweep s;
  for (int w = 0; w <= kDrafts; ++w)
    s.fixed.push_back(throughput(machine, num_seqs, mean, {DraftMode::kFixed, w}, length));
  s.scheduled = throughput(machine, num_seqs, mean, {DraftMode::kScheduled}, length);
  s.automatic = throughput(machine, num_seqs, mean, {DraftMode::kAuto}, length);
  double best = std::max(s.scheduled, *std::max_element(s.fixed.begin(), s.fixed.end()));
  std::printf("%-13s mean %.2f  %3d sequences  off %.3f  1..5", name, mean, num_seqs, s.fixed[0]);
  for (int w = 1; w <= kDrafts; ++w) std::printf(" %.3f", s.fixed[static_cast<std::size_t>(w)]);
  std::printf("  scheduled %.3f (%+.1f %% over 5)  auto %.3f (%.3f of the best)\n", s.scheduled,
              100 * (s.scheduled / s.fixed[5] - 1), s.automatic, s.automatic / best);
  std::fflush(stdout);
  return s;
}

struct Named {
  const char* name;
  Machine machine;
};

TEST(DraftPlannerSimulation, ScheduledGainsOverFixedFiveWhereTheBatchSaturates) {
  for (auto [num_seqs, gain] : {std::pair{60, 1.08}, std::pair{128, 1.20}, std::pair{256, 1.70}}) {
    Sweep s = sweep("saturating", saturating, num_seqs, 3.51);
    EXPECT_GE(s.scheduled, gain * s.fixed[5]) << num_seqs;
  }
}

class AutomaticChoice : public testing::TestWithParam<int> {};

TEST_P(AutomaticChoice, IsCloseToTheBest) {
  for (double mean : {3.51, 5.3})
    for (const auto& [name, machine] :
         {Named{"linear", linear}, Named{"saturating", saturating}, Named{"compute-bound", compute_bound}}) {
      Sweep s = sweep(name, machine, GetParam(), mean);
      double best = std::max(s.scheduled, *std::max_element(s.fixed.begin(), s.fixed.end()));
      EXPECT_GE(s.automatic, 0.99 * best) << name << " " << mean;
    }
}

// Sixty steps of a new engine, nothing left out, whatever a step takes: what is tried costs little, and the price of a
// row shows without trying.
TEST(DraftPlannerSimulation, IsGoodFromTheStart) {
  constexpr int kRuns = 12, kSteps = 60;
  auto tiny = [](int rows) { return 0.7 + 0.25 * rows; };
  auto large = [](int rows) { return 70 + 25.0 * rows; };
  for (double mean : {3.51, 5.3})
    for (const auto& [name, machine] :
         {Named{"linear", linear}, Named{"saturating", saturating}, Named{"compute-bound", compute_bound},
          Named{"tiny", tiny}, Named{"large", large}})
      for (int num_seqs : {1, 4, 16}) {
        auto ms_per_token = [&](const Policy& policy) {
          double sum = 0;
          for (unsigned run = 0; run < kRuns; ++run)
            sum += 1 / throughput(machine, num_seqs, mean, policy, {kSteps, 0, 1000 * run});
          return sum / kRuns;
        };
        double automatic = ms_per_token({DraftMode::kAuto}), best = ms_per_token({DraftMode::kFixed, 0});
        for (int w = 1; w <= kDrafts; ++w) best = std::min(best, ms_per_token({DraftMode::kFixed, w}));
        std::printf("%-13s mean %.2f  %3d sequences  %.3f of the best width\n", name, mean, num_seqs, best / automatic);
        EXPECT_GE(best / automatic, 0.95) << name << " " << mean << " " << num_seqs;
      }
}

INSTANTIATE_TEST_SUITE_P(Sequences, AutomaticChoice, testing::Values(1, 4, 16, 60, 128, 256));

}  // namespace
}  // namespace deepinfer::sched
