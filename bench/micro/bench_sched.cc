// Planning a step: choosing the verification widths alone, and everything.
#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "sched/draft_planner.h"
#include "sched/index_ledger.h"
#include "sched/scheduler.h"

namespace deepinfer::sched {
namespace {

void plan(benchmark::State& state, DraftMode mode) {
  CostModel cost({.num_experts = 256, .experts_per_token = 8});
  DraftPlanner planner({.mode = mode}, cost);
  std::mt19937 rng(2);
  std::vector<std::vector<float>> survivals(static_cast<std::size_t>(state.range(0)));
  std::vector<DraftQuery> queries;
  for (auto& row : survivals) {
    for (float v = 1; row.size() < 5;) row.push_back(v *= static_cast<float>(rng() % 1000) / 1000);
    queries.push_back({.seq = static_cast<int32_t>(queries.size()), .limit = 5, .survivals = row, .length = 1000});
  }
  std::vector<int> drafts(queries.size());
  for (auto _ : state) benchmark::DoNotOptimize(planner.plan(queries, drafts));
}
BENCHMARK_CAPTURE(plan, automatic, DraftMode::kAuto)->Arg(1)->Arg(16)->Arg(256)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan, scheduled, DraftMode::kScheduled)->Arg(256)->Unit(benchmark::kMicrosecond);

// A step of sequences that all decode, five drafts each: plan() and the commits of its results. The live choice of
// widths is paid for and not followed, so that every step has the same rows.
void step(benchmark::State& state) {
  constexpr int kPrompt = 900, kDrafts = 5;
  const auto num_sequences = static_cast<int>(state.range(0));
  CostModel cost({.num_experts = 256, .experts_per_token = 8});
  DraftPlanner planner({}, cost);
  IndexLedger ledger(num_sequences * 400, "key", {}, 2 * num_sequences);
  Scheduler scheduler({.max_rows = num_sequences * (kDrafts + 1),
                       .max_logit_rows = num_sequences * (kDrafts + 1),
                       .max_running = num_sequences,
                       .num_slots = num_sequences,
                       .num_drafts = kDrafts,
                       .max_length = 1 << 20},
                      ledger);
  std::vector<int> chosen(static_cast<std::size_t>(num_sequences));
  scheduler.set_draft_policy([&](std::span<const DraftQuery> queries, std::span<int>) {
    planner.plan(queries, std::span(chosen).first(queries.size()));
    return DraftDecision{.wants_drafts = true};
  });
  for (int i = 0; i < num_sequences; ++i) {
    NewSequence s{.tokens = std::vector<int32_t>(kPrompt, i), .max_total = 50'000};
    s.keep_tokens = 140;
    s.reuse = ReuseMode::kExact;
    scheduler.add(std::move(s)).value();
  }
  auto carry_out = [&](const StepPlan& plan) {
    for (const PlannedRun& run : plan.runs) {
      RunCommit commit{.seq = run.seq, .epoch = run.epoch, .computed = run.first_pos + run.rows};
      if (run.sample) commit.tokens.assign(run.decode ? 3 : 1, 7);
      commit.planned_rows = run.decode ? run.rows : 0;
      commit.survivals = {0.9F, 0.8F, 0.7F, 0.6F, 0.5F};
      scheduler.commit(commit);
    }
  };
  StepPlan plan;
  auto all_decode = [&] {
    return plan.runs.size() == static_cast<std::size_t>(num_sequences) &&
           std::ranges::all_of(plan.runs, [](const PlannedRun& r) { return r.decode && r.rows == kDrafts + 1; });
  };
  while (!all_decode()) carry_out(plan = scheduler.plan(0));
  double plan_us = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    plan = scheduler.plan(0);
    plan_us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    carry_out(plan);
  }
  state.counters["plan_us"] = plan_us / static_cast<double>(state.iterations());
  state.counters["rows"] = plan.num_rows;
}
BENCHMARK(step)->Arg(16)->Arg(256)->Iterations(2000)->Unit(benchmark::kMicrosecond);

void observe(benchmark::State& state) {
  CostModel cost({.num_experts = 256, .experts_per_token = 8});
  int rows = 0;
  for (auto _ : state) {
    rows = rows % 500 + 1;
    cost.observe({rows, 1e9}, 5 + 0.1 * rows);
  }
}
BENCHMARK(observe)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepinfer::sched

BENCHMARK_MAIN();
