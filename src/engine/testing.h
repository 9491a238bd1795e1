// What the tests of the engine share: checkpoints, requests, and a watch over the events of many requests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "deepinfer/engine.h"

namespace deepinfer::engine {

inline const std::string kTiny = DI_SOURCE_DIR "/models/tiny";
inline const std::string kRandom = DI_SOURCE_DIR "/tests/golden/random-small/checkpoint";

using Tokens = std::vector<int32_t>;

inline Tokens random_prompt(std::mt19937& rng, int vocab, int length) {
  Tokens ids;
  for (int i = 0; i < length; ++i) ids.push_back(3 + static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab - 16)));
  return ids;
}

inline Request request(Tokens prompt, int max_tokens, std::optional<uint64_t> seed = std::nullopt) {
  Request r{.prompt = std::move(prompt)};
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = seed ? 1.0 : 0.0;
  r.sampling.seed = seed;
  r.sampling.cache_mode = CacheMode::kOff;
  return r;
}

// Gathers the tokens and the terminal events of the choices of many requests.
class Watch {
 public:
  using Choice = std::pair<int, int>;  // the request's key, its choice

  Engine::Sink sink(int key) {
    return [this, key](const TokenEvent& e) {
      std::lock_guard lock(mutex_);
      if (e.token >= 0) ++num_tokens_, tokens_[{key, e.choice}].push_back(e.token);
      if (e.finish_reason == FinishReason::kNone) return;
      ends_[{key, e.choice}].push_back(e.finish_reason);
      if (!e.error.empty()) errors_[key] = e.error;
      changed_.notify_all();
    };
  }
  bool wait_for_ends(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(5), [&] { return ends_.size() >= count; });
  }
  void wait_for_tokens(int count) {
    while (true) {
      {
        std::lock_guard lock(mutex_);
        if (num_tokens_ >= count) return;
      }
      std::this_thread::yield();
    }
  }
  std::map<Choice, std::vector<FinishReason>> ends() const {
    std::lock_guard lock(mutex_);
    return ends_;
  }
  std::map<Choice, Tokens> tokens() const {
    std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::map<int, std::string> errors() const {
    std::lock_guard lock(mutex_);
    return errors_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Choice, std::vector<FinishReason>> ends_;
  std::map<Choice, Tokens> tokens_;
  std::map<int, std::string> errors_;
  int num_tokens_ = 0;
};

// The last end is published before the step after it is planned, which counts what became free.
inline void expect_idle(const Engine& engine) {
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (engine.stats().num_running > 0 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(engine.stats().num_running, 0);
  EXPECT_EQ(engine.stats().num_waiting, 0);
  EXPECT_EQ(engine.stats().blocks_available, engine.stats().blocks);
}

}  // namespace deepinfer::engine
