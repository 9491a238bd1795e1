// Choosing the verification width of a step.
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "sched/draft_planner.h"

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
