// Truncated prompts and prefix hits through the whole engine, against the oracle's replay (tests/golden/random-small).
//
// The oracle gives the logits of the prompt's last row; a first token with all alternatives gives them too.

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "engine/testing.h"
#include "model/testing.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 512;

struct ReplayCase {
  const char* name;  // of the oracle
  sched::Truncation truncation;
  CacheMode cache;
  int64_t cached_tokens, replayed_tokens;
  int stored_windows = 0;  // places
};

std::vector<double> log_softmax(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - top);
  std::vector<double> out;
  for (float x : logits) out.push_back(x - top - std::log(sum));
  return out;
}

class EngineReplay : public testing::TestWithParam<std::tuple<const char*, ReplayCase>> {};

TEST_P(EngineReplay, FirstTokensDistributionIsTheOracles) {
  const auto& [numerics, c] = GetParam();
  const model::Golden gold("replay");
  EngineOptions options{.model = model::random_small("checkpoint"),
                        .numerics = numerics,
                        .num_threads = 2,
                        .max_num_seqs = 2,
                        .max_num_batched_tokens = 96,
                        .truncation = static_cast<int>(c.truncation),
                        .keep_tokens = gold.integers("keep")[0]};
  Settings settings;
  settings.stored_windows = c.stored_windows;
  auto engine = EngineImpl::create(options, settings);
  ASSERT_TRUE(engine) << engine.error().message;
  Request r{.prompt = gold.ids("ids")};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 1;
  r.sampling.top_logprobs = kVocab;
  r.sampling.cache_mode = c.cache;
  if (c.cached_tokens > 0) {  // an earlier run of the same prefix
    Request earlier = r;
    earlier.prompt.resize(300);
    (*engine)->generate({earlier}, {});
  }
  const CompletionOutput out = (*engine)->generate({r}, {})[0].outputs[0];
  ASSERT_EQ(out.error, "");
  EXPECT_EQ(out.usage.cached_tokens, c.cached_tokens);
  EXPECT_EQ(out.usage.replayed_tokens, c.replayed_tokens);
  EXPECT_EQ(out.usage.from_stored_windows, c.stored_windows > 0);

  const std::vector<float> logits = gold.floats(fmt::format("{}.{}.logits", numerics, c.name));
  const std::vector<double> want = log_softmax(std::span(logits).last(kVocab));
  ASSERT_EQ(out.top_logprobs[0].size(), static_cast<size_t>(kVocab));
  double worst = 0;
  for (const auto& [id, logprob] : out.top_logprobs[0])
    worst = std::max(worst, std::fabs(logprob - want[static_cast<size_t>(id)]));
  EXPECT_LE(worst, 2 * model::kTolerance);
}

using sched::Truncation;
const ReplayCase kCases[] = {
    {"off", Truncation::kOff, CacheMode::kOff, 0, 0},
    {"off", Truncation::kOff, CacheMode::kExact, 256, 128},
    {"keep", Truncation::kCompact, CacheMode::kOff, 0, 0},
    {"keep", Truncation::kMask, CacheMode::kOff, 0, 0},
    // The oracle replays 42 rows, the least that is exact; the engine whole blocks.
    {"deep", Truncation::kCompact, CacheMode::kExact, 256, 128},
    {"deep", Truncation::kMask, CacheMode::kExact, 256, 128},
    {"bounded", Truncation::kCompact, CacheMode::kBounded, 256, 8},
    {"bounded", Truncation::kMask, CacheMode::kBounded, 256, 8},
    {"off", Truncation::kOff, CacheMode::kExact, 256, 0, 4},
    {"keep", Truncation::kCompact, CacheMode::kExact, 256, 0, 4},
    {"keep", Truncation::kMask, CacheMode::kExact, 256, 0, 4},
};
constexpr auto kName = [](const auto& test) {
  const ReplayCase& c = std::get<1>(test.param);
  return fmt::format("{}_{}_{}_{}{}", std::get<0>(test.param), c.name, static_cast<int>(c.truncation),
                     static_cast<int>(c.cache), c.stored_windows > 0 ? "_stored" : "");
};
INSTANTIATE_TEST_SUITE_P(Cases, EngineReplay,
                         testing::Combine(testing::Values("fp32", "qat"), testing::ValuesIn(kCases)), kName);

// The reference form computes every row and hides those before the kept ones: the same bits, however a prompt is cut
// and wherever a hit ends.
TEST(EngineTruncation, MaskAndCompactGiveTheSameBits) {
  std::mt19937 rng(3);
  const Tokens text = random_prompt(rng, kVocab, 600);
  for (const char* numerics : {"fp32", "fast"}) {
    std::vector<std::vector<std::optional<float>>> logprobs[2];
    for (bool is_masked : {false, true}) {
      for (int rows : {129, 600}) {
        Settings settings;
        settings.truncation = is_masked ? Truncation::kMask : Truncation::kCompact;
        auto engine = EngineImpl::create({.model = kRandom,
                                          .numerics = numerics,
                                          .num_threads = 2,
                                          .max_num_seqs = 2,
                                          .max_num_batched_tokens = rows,
                                          .keep_tokens = 30},
                                         settings);
        ASSERT_TRUE(engine) << engine.error().message;
        for (int length : {20, 400, 600}) {  // cold, cold, and behind a hit of one window
          Request r = request({text.begin(), text.begin() + length}, 12);
          r.sampling.cache_mode = CacheMode::kBounded;
          r.sampling.logprobs = true;
          r.sampling.ignore_eos = true;
          const CompletionOutput out = (*engine)->generate({r}, {})[0].outputs[0];
          EXPECT_EQ(out.error, "");
          EXPECT_EQ(out.usage.replayed_tokens, length == 600 ? 8 : 0);
          logprobs[is_masked].push_back(out.logprobs);
        }
      }
    }
    EXPECT_EQ(logprobs[0], logprobs[1]) << numerics;
  }
}

}  // namespace
}  // namespace deepinfer::engine
