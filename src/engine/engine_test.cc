// The whole engine on the built-in model and on the random fixture: what a request gives must not depend on what else
// runs, on drafts, on chunks or on preemption, and every choice ends exactly once.
//
// The fixture has random weights, so its drafts are nearly always rejected; the built-in model accepts most of them.

#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "engine/testing.h"

namespace deepinfer::engine {
namespace {

std::unique_ptr<EngineImpl> make(EngineOptions options) {
  if (options.num_threads == 0) options.num_threads = 2;
  auto engine = EngineImpl::create(options, Settings{});
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

// Engines that tests share, one for each set of options that are used often.
EngineImpl& tiny() {
  static std::unique_ptr<EngineImpl> engine = make({.model = kTiny});
  return *engine;
}
EngineImpl& random_small() {
  static std::unique_ptr<EngineImpl> engine = make({.model = kRandom});
  return *engine;
}

Request story(const EngineImpl& engine, const std::string& text, int max_tokens,
              std::optional<uint64_t> seed = std::nullopt) {
  return request(engine.encode("<｜begin▁of▁sentence｜>" + text), max_tokens, seed);
}

CompletionOutput run_alone(EngineImpl& engine, Request r) {
  std::vector<Request> one;
  one.push_back(std::move(r));
  return engine.generate(std::move(one), {})[0].outputs[0];
}

// Mixed requests for the fixture: greedy and seeded, short and long prompts, some beyond a step's rows.
std::vector<Request> mixed_requests(int count, int vocab, int longest = 300) {
  std::mt19937 rng(7);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    std::optional<uint64_t> seed;
    if (i % 2 == 1) seed = 1000 + static_cast<uint64_t>(i);
    requests.push_back(request(random_prompt(rng, vocab, 1 + static_cast<int>(rng() % static_cast<uint32_t>(longest))),
                               1 + static_cast<int>(rng() % 16), seed));
    requests.back().sampling.ignore_eos = i % 3 == 0;
  }
  return requests;
}

std::vector<Tokens> tokens_of(const std::vector<RequestOutput>& outputs) {
  std::vector<Tokens> all;
  for (const auto& o : outputs) {
    for (const auto& c : o.outputs) {
      EXPECT_EQ(c.error, "");
      all.push_back(c.token_ids);
    }
  }
  return all;
}

// The reference for mixed_requests: one at a time, in an engine that runs one sequence without drafts.
const std::vector<Tokens>& mixed_alone() {
  static const std::vector<Tokens> expected = [] {
    auto engine = make({.model = kRandom, .max_num_seqs = 1, .num_drafts = 0});
    std::vector<Tokens> all;
    for (Request& r : mixed_requests(32, engine->config().vocab_size))
      all.push_back(run_alone(*engine, std::move(r)).token_ids);
    return all;
  }();
  return expected;
}

// ---- equal tokens -------------------------------------------------------------------------------------------------

TEST(Engine, GreedyWithDraftsEqualsGreedyWithout) {
  auto plain = make({.model = kTiny, .num_drafts = 0});
  for (const char* text :
       {"Once upon a time", "In a little town", "<｜User｜>What is 27 + 15?<｜Assistant｜></think>"}) {
    CompletionOutput with = run_alone(tiny(), story(tiny(), text, 60));
    CompletionOutput without = run_alone(*plain, story(*plain, text, 60));
    EXPECT_EQ(with.token_ids, without.token_ids) << text;
    EXPECT_EQ(with.text, without.text) << text;
  }
}

TEST(Engine, SeededSamplingWithDraftsEqualsSeededSamplingWithout) {
  auto plain = make({.model = kTiny, .num_drafts = 0});
  for (uint64_t seed : {1, 2, 3}) {
    EXPECT_EQ(run_alone(tiny(), story(tiny(), "Once upon a time", 40, seed)).token_ids,
              run_alone(*plain, story(*plain, "Once upon a time", 40, seed)).token_ids);
  }
}

TEST(Engine, ConcurrentRequestsEqualEachAlone) {
  auto all = random_small().generate(mixed_requests(32, random_small().config().vocab_size), {});
  EXPECT_EQ(tokens_of(all), mixed_alone());
}

TEST(Engine, ChunkSizeDoesNotMatter) {
  for (int rows : {6, 7, 129}) {
    auto engine = make({.model = kRandom, .max_num_seqs = 1, .max_num_batched_tokens = rows});
    auto requests = mixed_requests(32, engine->config().vocab_size);
    requests.resize(6);
    std::vector<Tokens> expected(mixed_alone().begin(), mixed_alone().begin() + 6);
    EXPECT_EQ(tokens_of(engine->generate(std::move(requests), {})), expected) << rows << " rows a step";
  }
}

TEST(Engine, WithoutAsynchronousStepsTokensAreTheSame) {
  Settings settings;
  settings.async_steps = false;
  auto engine = EngineImpl::create({.model = kRandom, .num_threads = 1}, settings);
  ASSERT_TRUE(engine);
  EXPECT_EQ(tokens_of((*engine)->generate(mixed_requests(32, (*engine)->config().vocab_size), {})), mixed_alone());
}

// How many drafts a step verifies depends on what steps cost, so on the clock; tokens must not.
TEST(Engine, TokensAreTheSameWhateverDraftsAreVerified) {
  for (int varlen : {-1, 0, 1}) {
    Settings settings;
    settings.varlen = varlen;
    auto engine = EngineImpl::create({.model = kRandom, .num_threads = 2}, settings);
    ASSERT_TRUE(engine);
    for (int round = 0; round < 3; ++round) {
      auto outputs = (*engine)->generate(mixed_requests(32, (*engine)->config().vocab_size), {});
      EXPECT_EQ(tokens_of(outputs), mixed_alone()) << "mode " << varlen;
    }
  }
}

TEST(Engine, FewerDraftsInCrowdedStepsDoNotChangeTokens) {
  Settings settings;
  settings.varlen = 0;
  auto num_drafted = [&](int crowded_drafts) -> int64_t {
    auto engine = EngineImpl::create(
        {.model = kRandom, .num_threads = 2, .max_num_seqs = 4, .max_num_batched_tokens = 32}, settings);
    EXPECT_TRUE(engine) << engine.error().message;
    if (!engine) return -1;
    (*engine)->limit_crowded_drafts(crowded_drafts);
    auto outputs = (*engine)->generate(mixed_requests(32, (*engine)->config().vocab_size), {});
    EXPECT_EQ(tokens_of(outputs), mixed_alone()) << crowded_drafts;
    return (*engine)->stats().drafted_tokens;
  };
  EXPECT_LT(num_drafted(0), num_drafted(5));
}

TEST(Engine, EveryDraftPositionMayHaveItsTemperature) {
  Settings settings;
  settings.confidence_temperature = {1, 2};
  auto engine = EngineImpl::create({.model = kRandom}, settings);
  ASSERT_FALSE(engine);
  EXPECT_THAT(engine.error().message, testing::HasSubstr("has 2 values; allowed: one, or 5"));
}

// Ten sequences that grow to three blocks each, in the blocks of four sequences of four.
TEST(Engine, PreemptionDoesNotChangeTokens) {
  auto requests = [](const EngineImpl& e) {
    std::mt19937 rng(3);
    std::vector<Request> list;
    for (int i = 0; i < 10; ++i) {
      list.push_back(request(random_prompt(rng, e.config().vocab_size, 120 + 3 * i), 145));
      list.back().sampling.ignore_eos = true;
      list.back().sampling.prompt_logprobs = i == 2;
    }
    return list;
  };
  auto roomy = make({.model = kRandom, .max_num_seqs = 10});
  auto tight = make({.model = kRandom, .max_model_len = 500, .max_num_seqs = 10});
  ASSERT_LE(tight->stats().blocks, 16);
  auto expected = roomy->generate(requests(*roomy), {});
  auto outputs = tight->generate(requests(*tight), {});
  EXPECT_EQ(tokens_of(outputs), tokens_of(expected));
  EXPECT_EQ(outputs[2].prompt_logprobs, expected[2].prompt_logprobs);
  EXPECT_GT(tight->stats().preemptions, 0);
}

TEST(Engine, ForksEqualSeparateChoicesOfTheSameSeed) {
  for (int concurrency : {1, 2, 8}) {
    auto engine = make({.model = kTiny, .max_num_seqs = concurrency});
    Request three = story(*engine, "Once upon a time there was a fox who", 40, 11);
    three.sampling.n = 3;
    std::vector<Request> list;
    list.push_back(three);
    auto forks = engine->generate(std::move(list), {})[0].outputs;
    // Choice 0 is the request alone; the others must at least repeat, whoever ran beside them.
    Request one = three;
    one.sampling.n = 1;
    EXPECT_EQ(forks[0].token_ids, run_alone(*engine, one).token_ids);
    auto serial = make({.model = kTiny, .max_num_seqs = 1, .num_drafts = 0});
    std::vector<Request> again;
    again.push_back(three);
    auto expected = serial->generate(std::move(again), {})[0].outputs;
    for (size_t c = 0; c < 3; ++c)
      EXPECT_EQ(forks[c].token_ids, expected[c].token_ids) << "choice " << c << ", " << concurrency << " together";
    EXPECT_NE(forks[1].token_ids, forks[2].token_ids);
  }
}

// A fork that starts when its leader is far ahead must not take over a state that has moved on.
TEST(Engine, LateForksEqualEarlyOnes) {
  auto run = [](int concurrency, int prompt_length) {
    auto engine = make({.model = kRandom, .max_num_seqs = concurrency});
    std::mt19937 rng(5);
    Request r = request(random_prompt(rng, engine->config().vocab_size, prompt_length), 40, 4);
    r.sampling.n = 4;
    std::vector<Request> list;
    list.push_back(request(random_prompt(rng, engine->config().vocab_size, 30), 30));  // holds a place for a while
    list.push_back(std::move(r));
    for (auto& l : list) l.sampling.ignore_eos = true;
    return tokens_of(engine->generate(std::move(list), {}));
  };
  for (int prompt_length : {45, 46}) {  // inside a group of two, and after one
    auto expected = run(1, prompt_length);
    for (int concurrency : {2, 3, 8})
      EXPECT_EQ(run(concurrency, prompt_length), expected) << concurrency << " together";
  }
}

TEST(Engine, ExactPrefixHitsGiveTheTokensOfAColdRun) {
  std::mt19937 rng(9);
  Tokens prompt = random_prompt(rng, 500, 900);
  auto engine = make({.model = kRandom});
  Request cold = request(prompt, 12, 5);
  Request warm = cold;
  warm.sampling.cache_mode = CacheMode::kExact;
  CompletionOutput expected = run_alone(*engine, cold);
  EXPECT_EQ(run_alone(*engine, warm).token_ids, expected.token_ids);
  CompletionOutput hit = run_alone(*engine, warm);
  EXPECT_EQ(hit.token_ids, expected.token_ids);
  EXPECT_GT(hit.usage.cached_tokens, 0);
}

TEST(Engine, UsageSaysWhyThePromptWasMissed) {
  std::mt19937 rng(10);
  auto engine = make({.model = kRandom, .max_model_len = 800, .max_num_seqs = 1});
  auto run = [&](const Tokens& prompt, CacheMode mode = CacheMode::kBounded) {
    Request r = request(prompt, 2);
    r.sampling.cache_mode = mode;
    return run_alone(*engine, r).usage;
  };
  const Tokens prompt = random_prompt(rng, 500, 700);
  EXPECT_EQ(run(prompt, CacheMode::kOff).miss_cause, MissCause::kNone) << "it did not ask";
  EXPECT_EQ(run(prompt).miss_cause, MissCause::kNew);
  const Usage hit = run(prompt);
  EXPECT_GT(hit.cached_tokens, 0);
  EXPECT_EQ(hit.miss_cause, MissCause::kNone);
  EXPECT_EQ(run({prompt.begin(), prompt.begin() + 100}).miss_cause, MissCause::kBoundary) << "not one whole block";
  EXPECT_EQ(engine->stats().evicted_blocks, 0);
  const int64_t others = engine->stats().blocks / 5 + 1;  // prompts of 5 blocks
  for (int64_t i = 0; i < others; ++i) run(random_prompt(rng, 500, 700));
  EXPECT_GT(engine->stats().evicted_blocks, 0);
  EXPECT_EQ(run(prompt).miss_cause, MissCause::kEvicted);
}

TEST(Engine, UsageSaysHowLongARequestWaitedAndPrefilled) {
  auto engine = make({.model = kRandom, .max_num_seqs = 1});
  std::mt19937 rng(11);
  std::vector<Request> both(2, request(random_prompt(rng, 500, 300), 8));
  for (Request& r : both) r.sampling.ignore_eos = true;
  const auto begin = std::chrono::steady_clock::now();
  auto outputs = engine->generate(both, {});
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Usage first = outputs[0].outputs[0].usage, second = outputs[1].outputs[0].usage;
  EXPECT_FALSE(first.grammar_s);
  EXPECT_GT(first.prefill_s.value(), 0);
  EXPECT_GE(first.queue_s.value(), 0);
  EXPECT_GT(second.queue_s.value(), first.queue_s.value() + first.prefill_s.value()) << "it had to wait for the first";
  EXPECT_LT(second.queue_s.value() + second.prefill_s.value(), elapsed);
}

TEST(Engine, StateSlotsAreCountedWhileTheyAreInUse) {
  EngineImpl& engine = tiny();
  Watch watch;
  Request r = story(engine, "Once upon a time", 2000);
  r.sampling.ignore_eos = true;
  const uint64_t id = engine.submit(r, watch.sink(0)).value();
  watch.wait_for_tokens(20);
  EngineStats running = engine.stats();
  engine.cancel(id);
  ASSERT_TRUE(watch.wait_for_ends(1));
  EXPECT_EQ(running.state_slots_used, 1);
  EXPECT_GT(running.state_slots, engine.stats().max_sequences) << "some more than sequences that run";
  EXPECT_GT(running.confidence_error, 0);
  EXPECT_LT(running.confidence_error, 1);
  expect_idle(engine);
  EXPECT_EQ(engine.stats().state_slots_used, 0);
}

TEST(Engine, TheNamespaceIsThatOfModelAndNumerics) {
  const std::string name = random_small().namespace_digest();
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(make({.model = kRandom, .max_num_seqs = 1})->namespace_digest(), name);
  EXPECT_NE(make({.model = kRandom, .numerics = "vendor", .max_num_seqs = 1})->namespace_digest(), name);
  EXPECT_NE(tiny().namespace_digest(), name);
}

// ---- ends ---------------------------------------------------------------------------------------------------------

TEST(Engine, StopStringAcrossTokensCutsTheText) {
  CompletionOutput free = run_alone(tiny(), story(tiny(), "Once upon a time", 40));
  ASSERT_GT(free.text.size(), 30u);
  std::string stop = free.text.substr(11, 9);
  Request r = story(tiny(), "Once upon a time", 40);
  r.sampling.stop = {"no such text", stop};
  CompletionOutput cut = run_alone(tiny(), r);
  EXPECT_EQ(cut.text, free.text.substr(0, free.text.find(stop)));
  EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
  EXPECT_LT(cut.token_ids.size(), free.token_ids.size());
}

TEST(Engine, TextOfEventsIsTheTextOfTheTokens) {
  CompletionOutput c = run_alone(tiny(), story(tiny(), "Once upon a time", 50));
  EXPECT_EQ(c.text, tiny().decode(c.token_ids));
}

TEST(Engine, LengthIsRespectedByDrafts) {
  for (int n : {1, 2, 3, 7}) {
    CompletionOutput c = run_alone(tiny(), story(tiny(), "Once upon a time", n));
    EXPECT_EQ(c.token_ids.size(), static_cast<size_t>(n));
    EXPECT_EQ(c.finish_reason, FinishReason::kLength);
    EXPECT_EQ(c.usage.completion_tokens, n);
  }
}

TEST(Engine, PromptLogprobsAreThoseOfTheChosenTokens) {
  Request r = story(tiny(), "Once upon a time", 20);
  r.sampling.logprobs = true;
  CompletionOutput c = run_alone(tiny(), r);
  ASSERT_EQ(c.logprobs.size(), c.token_ids.size());
  Request whole = r;
  whole.prompt.insert(whole.prompt.end(), c.token_ids.begin(), c.token_ids.end());
  whole.sampling.prompt_logprobs = true;
  whole.sampling.logprobs = false;
  std::vector<Request> list;
  list.push_back(whole);
  auto out = tiny().generate(std::move(list), {});
  ASSERT_EQ(out[0].prompt_logprobs.size(), whole.prompt.size() - 1);
  for (size_t i = 0; i < c.token_ids.size(); ++i) {
    EXPECT_NEAR(*out[0].prompt_logprobs[r.prompt.size() - 1 + i], *c.logprobs[i], 1e-4) << "token " << i;
  }
}

TEST(Engine, DeadlineEndsARequestOnce) {
  Watch watch;
  Request r = story(tiny(), "Once upon a time", 1000);
  r.sampling.ignore_eos = true;
  r.sampling.deadline_ms = 20;
  Request far = story(tiny(), "Once upon a time", 3);
  far.sampling.deadline_ms = INT64_MAX;
  ASSERT_TRUE(tiny().submit(r, watch.sink(0)));
  ASSERT_TRUE(tiny().submit(far, watch.sink(1)));
  ASSERT_TRUE(watch.wait_for_ends(2));
  auto ends = watch.ends();
  EXPECT_THAT((ends[{0, 0}]), testing::ElementsAre(FinishReason::kDeadline));
  EXPECT_THAT((ends[{1, 0}]), testing::ElementsAre(FinishReason::kLength));
}

TEST(Engine, CancelInAnyStateEndsOnce) {
  auto engine = make({.model = kRandom, .max_num_seqs = 4});
  Watch watch;
  std::mt19937 rng(2);
  size_t choices = 0;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 24; ++i) {
    Request r = request(random_prompt(rng, engine->config().vocab_size, 1 + static_cast<int>(rng() % 400)), 40, 3);
    r.sampling.ignore_eos = true;
    r.sampling.n = 1 + i % 3;
    choices += static_cast<size_t>(r.sampling.n);
    auto id = engine->submit(std::move(r), watch.sink(i));
    ASSERT_TRUE(id);
    ids.push_back(*id);
    if (i % 4 == 0) engine->cancel(*id);  // not yet admitted
  }
  engine->cancel(987654);  // unknown
  for (int wanted = 5; !ids.empty(); wanted += 20) {
    watch.wait_for_tokens(wanted);
    for (int k = 0; k < 6 && !ids.empty(); ++k) {
      size_t at = rng() % ids.size();
      engine->cancel(ids[at]);
      if (k % 2 == 0) engine->cancel(ids[at]);
      ids.erase(ids.begin() + static_cast<long>(at));
    }
  }
  ASSERT_TRUE(watch.wait_for_ends(choices));
  run_alone(*engine, request({5, 6, 7}, 4));  // anything late would come before this ends
  auto ends = watch.ends();
  EXPECT_EQ(ends.size(), choices);
  for (const auto& [key, reasons] : ends) EXPECT_EQ(reasons.size(), 1u) << key.first << "." << key.second;
  expect_idle(*engine);
}

TEST(Engine, DestroyedWithRequestsRunningEndsEachOnce) {
  for (int tokens : {0, 1, 30}) {
    Watch watch;
    size_t choices = 0;
    {
      auto engine = make({.model = kRandom, .max_num_seqs = 3});
      for (Request& r : mixed_requests(12, engine->config().vocab_size)) {
        r.sampling.n = 2;
        r.sampling.max_tokens = 200;
        choices += 2;
        ASSERT_TRUE(engine->submit(std::move(r), watch.sink(static_cast<int>(choices))));
      }
      watch.wait_for_tokens(tokens);
    }
    auto ends = watch.ends();
    EXPECT_EQ(ends.size(), choices);
    for (const auto& [key, reasons] : ends) EXPECT_EQ(reasons.size(), 1u);
  }
}

TEST(Engine, ManyThreadsMaySubmitAndCancel) {
  Watch watch;
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kEach = 8;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      for (int i = 0; i < kEach; ++i) {
        auto id = random_small().submit(request(random_prompt(rng, 500, 20), 10), watch.sink(t * kEach + i));
        EXPECT_TRUE(id);
        if (i % 2 == 0) random_small().cancel(*id);
        random_small().stats();
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_TRUE(watch.wait_for_ends(kThreads * kEach));
}

// ---- refusals -----------------------------------------------------------------------------------------------------

TEST(Engine, RefusalsNameFieldValueAndLimit) {
  auto why = [](Request r) {
    auto id = random_small().submit(std::move(r), [](const TokenEvent&) { ADD_FAILURE(); });
    EXPECT_FALSE(id);
    EXPECT_TRUE(id || id.failure().is_user_error);
    return id ? std::string() : id.failure().message;
  };
  EXPECT_THAT(why(request({}, 4)), testing::HasSubstr("prompt is empty"));
  EXPECT_THAT(why(request({5, -1}, 4)), testing::AllOf(testing::HasSubstr("-1"), testing::HasSubstr("511")));
  EXPECT_THAT(why(request({512}, 4)), testing::HasSubstr("512"));
  EXPECT_THAT(why(request(Tokens(5000, 7), 4)), testing::HasSubstr("5000"));
  EXPECT_THAT(why(request({7}, 100000)), testing::HasSubstr("max_tokens 100000"));
  Request r = request({7}, 4);
  r.sampling.n = 1 << 30;
  EXPECT_THAT(why(r), testing::HasSubstr("n 1073741824"));
  auto outputs = random_small().generate({r, request({7}, 4)}, {});
  EXPECT_THAT(outputs[0].outputs[0].error, testing::HasSubstr("n 1073741824"));
  EXPECT_EQ(outputs[1].outputs[0].token_ids.size(), 4u);
}

TEST(Engine, TooLittleMemoryIsKnownBeforeAllocation) {
  auto engine = EngineImpl::create({.model = kTiny, .memory_fraction = 1e-6}, Settings{});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Code::kExhausted);
  EXPECT_THAT(engine.error().message, testing::HasSubstr("not enough memory"));
}

}  // namespace
}  // namespace deepinfer::engine
