#include "sampling/params.h"

#include <limits>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr Limits kLimits{.vocab = 1000, .context_length = 8192, .prompt_length = 500};

std::string refusal(void (*change)(SamplingParams&)) {
  SamplingParams p;
  change(p);
  auto result = validate(p, kLimits);
  return result ? "" : result.error().message;
}

TEST(Params, DefaultsAreValid) {
  EXPECT_TRUE(validate(SamplingParams{}, kLimits));
}

TEST(Params, RefusalNamesFieldValueAndLimit) {
  EXPECT_EQ(refusal([](auto& p) { p.max_tokens = 9000; }), "max_tokens 9000 exceeds context 8192 (prompt 500)");
  EXPECT_EQ(refusal([](auto& p) { p.top_p = 0; }), "top_p 0 is outside (0, 1]");
  EXPECT_EQ(refusal([](auto& p) { p.top_k = 0; }), "top_k 0 is neither -1 (off) nor at least 1");
  EXPECT_EQ(refusal([](auto& p) { p.temperature = -0.5; }), "temperature -0.5 is outside [0, 100]");
  EXPECT_EQ(refusal([](auto& p) { p.temperature = std::numeric_limits<double>::quiet_NaN(); }),
            "temperature nan is outside [0, 100]");
  EXPECT_EQ(refusal([](auto& p) { p.min_p = 1.5; }), "min_p 1.5 is outside [0, 1]");
  EXPECT_EQ(refusal([](auto& p) { p.repetition_penalty = 0; }), "repetition_penalty 0 is outside (0, 100]");
  EXPECT_EQ(refusal([](auto& p) { p.logit_bias = {{1000, 1}}; }),
            "logit_bias id 1000 is outside the vocabulary of 1000 ids");
  EXPECT_EQ(refusal([](auto& p) { p.stop = {""}; }), "stop holds an empty string");
  EXPECT_EQ(refusal([](auto& p) { p.n = 129; }), "n 129 is outside 1..128");
  EXPECT_EQ(refusal([](auto& p) { p.top_logprobs = 1001; }), "top_logprobs 1001 is outside 0..1000");
  EXPECT_EQ(refusal([](auto& p) { p.golden_token_ids = {5, -1, 1000}; }),
            "golden_token_ids id 1000 is outside the vocabulary of 1000 ids");
  EXPECT_EQ(refusal([](auto& p) { p.deadline_ms = 0; }), "deadline_ms 0 is not positive");
}

TEST(Params, RepeatedBiasKeepsItsLastValue) {
  SamplingParams p;
  p.logit_bias = {{7, 1.0f}, {3, 2.0f}, {7, 5.0f}};
  RowParams r = make_row_params(p, {});
  ASSERT_EQ(r.bias.size(), 2u);
  EXPECT_EQ(r.bias[0].id, 3);
  EXPECT_EQ(r.bias[1].value, 5.0f);
}

TEST(Params, TemperatureBelowTheClampIsGreedy) {
  SamplingParams p;
  p.temperature = 9e-6;
  EXPECT_TRUE(make_row_params(p, {}).is_greedy);
  p.temperature = 1e-5;
  EXPECT_FALSE(make_row_params(p, {}).is_greedy);
}

TEST(Params, DerivedSeedsDifferByEngineAndRequest) {
  EXPECT_EQ(derive_seed(1, "a"), derive_seed(1, "a"));
  EXPECT_NE(derive_seed(1, "a"), derive_seed(2, "a"));
  EXPECT_NE(derive_seed(1, "a"), derive_seed(1, "b"));
}

TEST(Params, BlacklistTakesValuesAndClosedRanges) {
  EXPECT_EQ(parse_banned_ids("0..3,7", 10).value(), (std::vector<int32_t>{0, 1, 2, 3, 7}));
  EXPECT_TRUE(parse_banned_ids("", 10)->empty());
  for (const char* bad : {"3,2", "3..1", "1,1", "a", "1,", "1;2", "10", "-1", "1..", "0..10"})
    EXPECT_FALSE(parse_banned_ids(bad, 10)) << bad;
}

}  // namespace
}  // namespace deepinfer::sampling
