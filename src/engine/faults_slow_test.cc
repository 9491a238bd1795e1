// Failing steps, cancellations and deadlines with little memory (preemptions come or not, as threads run), all at once:
// every choice ends exactly once, what it gave is the beginning of what it gives undisturbed, and nothing stays behind.

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "engine/testing.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::engine {
namespace {

// The call that `calls_left` counts down to fails, then one after every `again` more; 0: none.
struct Fault {
  std::atomic<int> calls_left{0}, again{0}, num_failed{0};
};

class FaultyOps final : public kernels::ref::RefOps {
 public:
  explicit FaultyOps(Fault& fault) : RefOps(kernels::Numerics::kFast), fault_(fault) {}

  void attention(Stream& stream, const kernels::AttentionParams& p) override {
    if (fault_.calls_left > 0 && --fault_.calls_left == 0) {
      fault_.calls_left = fault_.again.load();
      ++fault_.num_failed;
      throw DeviceError("an injected fault");
    }
    RefOps::attention(stream, p);
  }

 private:
  Fault& fault_;
};

std::unique_ptr<EngineImpl> make(EngineOptions options, Fault& fault) {
  Backend backend = *choose_backend("fast", "ref");
  backend.make_ops = [&fault] { return std::make_unique<FaultyOps>(fault); };
  auto engine = EngineImpl::create(options, Settings{}, backend);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

TEST(EngineFaults, AFailedStepEndsItsOwnRequestsAndTheEngineGoesOn) {
  Fault fault;
  auto engine = make({.model = kRandom, .num_threads = 2, .max_num_seqs = 1}, fault);
  const Request steady = request({5, 6, 7}, 6);
  const Tokens expected = engine->generate({steady}, {})[0].outputs[0].token_ids;
  for (int calls : {1, 7, 25}) {
    Watch watch;
    Request victim = request({9, 8, 7}, 1000);
    victim.sampling.ignore_eos = true;
    ASSERT_TRUE(engine->submit(victim, watch.sink(0)));
    watch.wait_for_tokens(3);
    ASSERT_TRUE(engine->submit(steady, watch.sink(1)));  // waits: one sequence at a time
    fault.calls_left = calls;
    ASSERT_TRUE(watch.wait_for_ends(2));
    auto ends = watch.ends();
    EXPECT_THAT((ends[{0, 0}]), testing::ElementsAre(FinishReason::kError));
    EXPECT_THAT(watch.errors()[0], testing::HasSubstr("an injected fault"));
    EXPECT_EQ((watch.tokens()[{1, 0}]), expected);
    expect_idle(*engine);
  }
}

// Requests that are asked for again and again: most grow into a third block, two have longer prompts that are cached.
std::vector<Request> pool() {
  std::mt19937 rng(4);
  std::vector<Request> list;
  for (int i = 0; i < 6; ++i) {
    const bool is_long = i % 3 == 0;
    Request r = request(random_prompt(rng, 512, is_long ? 300 : 120 + i), is_long ? 10 : 145);
    if (i % 2 == 1) r.sampling.temperature = 1, r.sampling.seed = 70 + static_cast<uint64_t>(i);
    r.sampling.ignore_eos = true;
    r.sampling.n = i == 2 ? 2 : 1;
    r.sampling.cache_mode = is_long ? CacheMode::kExact : CacheMode::kOff;
    list.push_back(std::move(r));
  }
  return list;
}

TEST(EngineFaults, EverythingAtOnceEndsEachChoiceOnce) {
  Fault fault;
  auto engine = make({.model = kRandom,
                      .num_threads = 2,
                      .max_model_len = 400,
                      .max_num_seqs = 12,
                      .max_num_batched_tokens = 128,
                      .num_drafts = 1},
                     fault);
  const std::vector<Request> requests = pool();
  std::vector<std::vector<Tokens>> expected;
  for (const Request& r : requests) {
    const std::vector<RequestOutput> undisturbed = engine->generate({r}, {});
    auto& choices = expected.emplace_back();
    for (const auto& choice : undisturbed[0].outputs) choices.push_back(choice.token_ids);
  }

  fault.calls_left = fault.again = 900;  // about every 70th step
  constexpr int kClients = 3, kEach = 8;
  Watch watch;
  std::atomic<size_t> num_choices{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 rng(static_cast<uint32_t>(client));
      std::vector<uint64_t> ids;
      for (int i = 0; i < kEach; ++i) {
        const auto which = rng() % requests.size();
        Request r = requests[which];
        r.sampling.priority = static_cast<int>(rng() % 2);
        if (rng() % 5 == 0) r.sampling.deadline_ms = 1 + rng() % 2000;
        num_choices += static_cast<size_t>(r.sampling.n);
        auto id = engine->submit(std::move(r), watch.sink((client * kEach + i) * 100 + static_cast<int>(which)));
        ASSERT_TRUE(id);
        ids.push_back(*id);
        if (rng() % 4 == 0) engine->cancel(ids[rng() % ids.size()], rng() % 2 == 0 ? 0 : Engine::kAllChoices);
        std::this_thread::sleep_for(std::chrono::milliseconds(rng() % 30));
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_TRUE(watch.wait_for_ends(num_choices));
  expect_idle(*engine);

  EXPECT_GT(fault.num_failed, 0);
  const auto ends = watch.ends();
  EXPECT_EQ(ends.size(), num_choices);
  std::map<FinishReason, int> reasons;
  for (const auto& [choice, list] : ends) {
    ASSERT_EQ(list.size(), 1u);
    ++reasons[list[0]];
    const Tokens& whole = expected[static_cast<size_t>(choice.first % 100)][static_cast<size_t>(choice.second)];
    const Tokens given = watch.tokens()[choice];
    ASSERT_LE(given.size(), whole.size());
    EXPECT_TRUE(std::equal(given.begin(), given.end(), whole.begin())) << choice.first << "." << choice.second;
    EXPECT_EQ(list[0] == FinishReason::kLength, given.size() == whole.size());
  }
  for (FinishReason reason : {FinishReason::kLength, FinishReason::kCancelled, FinishReason::kError})
    EXPECT_GT(reasons[reason], 0) << finish_reason_name(reason);
}

}  // namespace
}  // namespace deepinfer::engine
