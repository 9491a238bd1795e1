// Time to the first token of a prompt that was asked before: cold, with a bounded hit, a deep hit, and stored windows.
//
//   bench_engine MODEL [PROMPT_TOKENS [REPEATS]]      the kinds take turns; medians, with spread
//
// What the cache holds afterwards is compared with the formula: floor(N / 128) blocks.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

struct Kind {
  const char* name;
  CacheMode mode;
  int stored_windows;
};
constexpr Kind kKinds[] = {{"cold", CacheMode::kOff, 0},
                           {"bounded hit", CacheMode::kBounded, 0},
                           {"deep hit", CacheMode::kExact, 0},
                           {"stored windows", CacheMode::kExact, 4}};

struct Reading {
  std::vector<double> ms;
  Usage usage;
};

std::unique_ptr<EngineImpl> make_engine(const std::string& model, int64_t length, int stored_windows) {
  Settings settings;
  settings.stored_windows = stored_windows;
  auto engine = EngineImpl::create({.model = model, .max_model_len = length + 512, .max_num_seqs = 2}, settings);
  if (!engine) {
    std::fprintf(stderr, "%s\n", engine.error().message.c_str());
    std::exit(2);
  }
  return std::move(*engine);
}

double run(Engine& engine, const std::vector<int32_t>& prompt, CacheMode mode, Usage& usage) {
  Request r{.prompt = prompt};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 1;
  r.sampling.cache_mode = mode;
  const auto begin = std::chrono::steady_clock::now();
  usage = engine.generate({r}, {})[0].outputs[0].usage;
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

int number(const char* text) {
  int n = 0;
  std::from_chars(text, text + std::string_view(text).size(), n);
  return n;
}

int measure(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_engine MODEL [PROMPT_TOKENS [REPEATS]]\n");
    return 2;
  }
  const int length = argc > 2 ? number(argv[2]) : 4096, repeats = argc > 3 ? number(argv[3]) : 5;
  std::mt19937 rng(1);
  std::vector<std::unique_ptr<EngineImpl>> engines;
  for (const Kind& kind : kKinds) engines.push_back(make_engine(argv[1], length, kind.stored_windows));
  const auto vocab = static_cast<uint32_t>(engines[0]->config().vocab_size);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& id : prompt) id = static_cast<int32_t>(3 + rng() % (vocab - 16));

  std::vector<Reading> readings(engines.size());
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first fills caches and page tables
    for (size_t i = 0; i < engines.size(); ++i) {
      const double ms = run(*engines[i], prompt, kKinds[i].mode, readings[i].usage);
      if (repeat >= 0) readings[i].ms.push_back(ms);
    }
  }
  std::printf("%-16s %10s %20s %8s %9s\n", "prompt of tokens", "median ms", "spread", "cached", "replayed");
  for (size_t i = 0; i < engines.size(); ++i) {
    Reading& r = readings[i];
    std::sort(r.ms.begin(), r.ms.end());
    std::printf("%-16s %10.1f %9.1f - %8.1f %8ld %9ld%s\n", kKinds[i].name, r.ms[r.ms.size() / 2], r.ms.front(),
                r.ms.back(), static_cast<long>(r.usage.cached_tokens), static_cast<long>(r.usage.replayed_tokens),
                r.usage.from_stored_windows ? "  from stored windows" : "");
  }
  std::vector<int32_t> longer = prompt;
  longer.resize(prompt.size() + 300, 5);
  Usage usage;
  run(*engines[1], longer, CacheMode::kBounded, usage);
  std::printf("blocks stored: %ld, formula %d\n", static_cast<long>(usage.cached_tokens / 128), length / 128);
  return 0;
}

}  // namespace
}  // namespace deepinfer::engine

int main(int argc, char** argv) {
  return deepinfer::engine::measure(argc, argv);
}
