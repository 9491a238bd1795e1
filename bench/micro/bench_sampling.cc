// Cost of one row of the released vocabulary by kind of request, on logits like a trained model's (normal, a few peaks)
// and on flat ones.
#include <random>

#include <benchmark/benchmark.h>

#include "base/check.h"
#include "sampling/verify.h"

namespace deepinfer::sampling {
namespace {

constexpr int kVocab = 129280;

struct Setting {
  const char* name;
  void (*change)(SamplingParams&);
};
constexpr Setting kSettings[] = {
    {"greedy", [](SamplingParams& p) { p.temperature = 0; }},
    {"plain", [](SamplingParams&) {}},
    {"top_p", [](SamplingParams& p) { p.top_p = 0.95; }},
    {"top_p_penalties",
     [](SamplingParams& p) { p.top_p = 0.95, p.repetition_penalty = 1.1, p.frequency_penalty = 0.2; }},
    {"top_k", [](SamplingParams& p) { p.top_k = 50; }},
    {"min_p", [](SamplingParams& p) { p.min_p = 0.05; }},
    {"top_p_logprobs", [](SamplingParams& p) { p.top_p = 0.95, p.top_logprobs = 20, p.logprobs = true; }},
};

std::vector<float> logits(double spread) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, static_cast<float>(spread));
  std::vector<float> z(kVocab);
  for (float& v : z) v = normal(rng);
  for (int i = 0; i < 5; ++i) z[rng() % kVocab] = static_cast<float>(spread * 4.5 + 5 + i);
  return z;
}

void sample(benchmark::State& state, const Setting& setting, double spread) {
  std::vector<float> z = logits(spread);
  SamplingParams sp;
  setting.change(sp);
  RowParams params = make_row_params(sp, {});
  TokenCounts counts;
  std::mt19937 rng(2);
  for (int i = 0; i < 1000; ++i) counts.add(static_cast<int32_t>(rng() % kVocab));
  Workspace ws;
  TokenReport report;
  uint32_t index = 0;
  for (auto _ : state) {
    auto result = sample_row({.logits = z.data(), .vocab = kVocab, .params = &params, .counts = &counts},
                             {.seed = 1, .index = index++}, -1, ws, &report);
    DI_CHECK(result.has_value(), "a row failed");
    benchmark::DoNotOptimize(report.token);
  }
  state.counters["kept"] = ws.law.is_dense ? kVocab : ws.law.count;
}

int add_all() {
  for (const Setting& s : kSettings)
    for (double spread : {2.0, 0.7})
      benchmark::RegisterBenchmark((std::string(s.name) + (spread > 1 ? "/peaked" : "/flat")).c_str(),
                                   [&s, spread](benchmark::State& state) { sample(state, s, spread); })
          ->Unit(benchmark::kMicrosecond);
  return 0;
}
const int kAdded = add_all();

}  // namespace
}  // namespace deepinfer::sampling

BENCHMARK_MAIN();
