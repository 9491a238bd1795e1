// Hits that start from stored windows, through the whole engine: the bits of a cold run, and no row that runs again.
#pragma once

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "engine/testing.h"

namespace deepinfer::engine::stored_windows {

constexpr int kVocab = 512;

struct Side {
  sched::Truncation truncation;
  std::string backend;
};
inline auto sides_of(const std::string& backend) {
  return testing::Values(Side{sched::Truncation::kOff, backend}, Side{sched::Truncation::kCompact, backend});
}
inline std::string name_of(const testing::TestParamInfo<Side>& side) {
  return std::to_string(static_cast<int>(side.param.truncation));
}

// A program instantiates the suite for its backend.
class StoredWindows : public testing::TestWithParam<Side> {};

inline std::unique_ptr<EngineImpl> make_engine(const Side& side, int stored_windows) {
  Settings settings;
  settings.truncation = side.truncation;
  settings.stored_windows = stored_windows;
  // The same drafts verified whatever the time that steps take, so that their acceptance can be compared.
  settings.varlen = 0;
  settings.async_steps = false;
  auto engine = EngineImpl::create(
      {.model = kRandom, .backend = side.backend, .num_threads = 1, .max_num_seqs = 2, .max_num_batched_tokens = 160},
      settings);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

inline CompletionOutput run(Engine& engine, Tokens prompt, int max_tokens, CacheMode mode) {
  Request r = request(std::move(prompt), max_tokens);
  r.sampling.cache_mode = mode;
  r.sampling.ignore_eos = true;
  r.sampling.logprobs = true;
  r.sampling.top_logprobs = 5;
  return engine.generate({r}, {})[0].outputs[0];
}

inline void expect_equal(const CompletionOutput& got, const CompletionOutput& want, const std::string& what) {
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(got.token_ids, want.token_ids) << what;
  EXPECT_EQ(got.logprobs, want.logprobs) << what;
}

// Every length against whatever shorter and longer prompts have left, in random order: with few places most windows are
// gone and the hit is deep, with many it starts from them.
TEST_P(StoredWindows, EveryLengthGivesTheBitsOfAColdRun) {
  const Side& side = GetParam();
  std::mt19937 rng(5);
  const Tokens text = random_prompt(rng, kVocab, 1100);
  std::vector<int> lengths;
  for (int block = 0; block <= 1024; block += 128) {
    for (int offset : {-1, 0, 1, 70}) {
      if (block + offset >= 1) lengths.push_back(block + offset);
    }
  }
  std::shuffle(lengths.begin(), lengths.end(), rng);
  auto few = make_engine(side, 2), many = make_engine(side, 40);
  int num_stored = 0, num_replayed = 0;
  for (int length : lengths) {
    const Tokens prompt(text.begin(), text.begin() + length);
    const CompletionOutput cold = run(*few, prompt, 2, CacheMode::kOff);
    for (auto* engine : {few.get(), many.get()}) {
      const CompletionOutput hit = run(*engine, prompt, 2, CacheMode::kExact);
      expect_equal(hit, cold, fmt::format("{} tokens", length));
      EXPECT_LT(hit.usage.cached_tokens, length);
      EXPECT_TRUE(!hit.usage.from_stored_windows || hit.usage.replayed_tokens == 0);
      num_stored += hit.usage.from_stored_windows;
      num_replayed += hit.usage.replayed_tokens > 0;
    }
  }
  EXPECT_GT(num_stored, 15);
  EXPECT_GT(num_replayed, 5);
}

// A conversation: each turn goes on from windows that were stored while the turn before was written, drafts included.
TEST_P(StoredWindows, TurnsOfAConversationGoOnFromTheOutputsWindows) {
  const Side& side = GetParam();
  std::mt19937 rng(6);
  auto engine = make_engine(side, 8);
  Tokens conversation = random_prompt(rng, kVocab, 200);
  for (int turn = 0; turn < 3; ++turn) {
    const CompletionOutput cold = run(*engine, conversation, 200, CacheMode::kOff);
    const CompletionOutput hit = run(*engine, conversation, 200, CacheMode::kExact);
    expect_equal(hit, cold, fmt::format("turn {}", turn));
    EXPECT_EQ(hit.usage.accepted_tokens, cold.usage.accepted_tokens) << "drafts have the same bits too";
    EXPECT_EQ(hit.usage.from_stored_windows, turn > 0);
    const auto reach = static_cast<int64_t>(conversation.size()) - hit.usage.cached_tokens;
    EXPECT_TRUE(turn == 0 || reach <= 2 * 128 + 30) << reach;
    conversation.insert(conversation.end(), hit.token_ids.begin(), hit.token_ids.end());
    const Tokens question = random_prompt(rng, kVocab, 30);
    conversation.insert(conversation.end(), question.begin(), question.end());
  }
}

TEST_P(StoredWindows, WithoutPlacesAHitIsDeepAndNothingIsStored) {
  const Side& side = GetParam();
  std::mt19937 rng(7);
  auto engine = make_engine(side, 0);
  const Tokens prompt = random_prompt(rng, kVocab, 700);
  const CompletionOutput cold = run(*engine, prompt, 3, CacheMode::kExact);
  const CompletionOutput hit = run(*engine, prompt, 3, CacheMode::kExact);
  expect_equal(hit, cold, "deep");
  EXPECT_GT(hit.usage.replayed_tokens, 0);
  EXPECT_FALSE(hit.usage.from_stored_windows);
}

}  // namespace deepinfer::engine::stored_windows
