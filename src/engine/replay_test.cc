// Truncated prompts and prefix hits through the whole engine, against the oracle's replay (tests/golden/random-small).
//
// The oracle gives the logits of the prompt's last row; a first token with all alternatives gives them too.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "model/testing.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 512;

struct ReplayCase {
  const char* name;  // of the oracle
  sched::Truncation truncation;
  CacheMode cache;
  int64_t cached_tokens, replayed_tokens;
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
  auto engine = EngineImpl::create(options, Settings{});
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

  const std::vector<float> logits = gold.floats(fmt::format("{}.{}.logits", numerics, c.name));
  const std::vector<double> want = log_softmax(std::span(logits).last(kVocab));
  ASSERT_EQ(out.top_logprobs[0].size(), static_cast<size_t>(kVocab));
  double worst = 0;
  for (const auto& [id, logprob] : out.top_logprobs[0])
    worst = std::max(worst, std::fabs(logprob - want[static_cast<size_t>(id)]));
  EXPECT_LE(worst, 2 * model::kTolerance);
}

using sched::Truncation;
const ReplayCase kExactCases[] = {
    {"off", Truncation::kOff, CacheMode::kOff, 0, 0},
    {"off", Truncation::kOff, CacheMode::kExact, 256, 128},
    {"keep", Truncation::kCompact, CacheMode::kOff, 0, 0},
    {"keep", Truncation::kMask, CacheMode::kOff, 0, 0},
    // The oracle replays 42 rows, the least that is exact; the engine whole blocks.
    {"deep", Truncation::kCompact, CacheMode::kExact, 256, 128},
    {"deep", Truncation::kMask, CacheMode::kExact, 256, 128},
};
// In fp32 only: in qat the last row depends on which side of a rounding border a value falls (golden_slow_test.cc).
const ReplayCase kBoundedCases[] = {
    {"bounded", Truncation::kCompact, CacheMode::kBounded, 256, 8},
    {"bounded", Truncation::kMask, CacheMode::kBounded, 256, 8},
};
constexpr auto kName = [](const auto& test) {
  const ReplayCase& c = std::get<1>(test.param);
  return fmt::format("{}_{}_{}_{}", std::get<0>(test.param), c.name, static_cast<int>(c.truncation),
                     static_cast<int>(c.cache));
};
INSTANTIATE_TEST_SUITE_P(Exact, EngineReplay,
                         testing::Combine(testing::Values("fp32", "qat"), testing::ValuesIn(kExactCases)), kName);
INSTANTIATE_TEST_SUITE_P(Bounded, EngineReplay,
                         testing::Combine(testing::Values("fp32"), testing::ValuesIn(kBoundedCases)), kName);

}  // namespace
}  // namespace deepinfer::engine
