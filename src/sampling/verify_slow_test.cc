// Frequencies of speculative and direct sampling over 200,000 answers for every mode and kind of filter.
#include <gtest/gtest.h>

#include "sampling/testing/toy_model.h"

namespace deepinfer::sampling {
namespace {

using toy::frequencies;
using toy::laws_agree;
using toy::StepSettings;
using toy::ToyRunner;

constexpr int kDraws = 200000;

class LawOfSteps : public ::testing::TestWithParam<StepSettings> {};

TEST_P(LawOfSteps, SpeculativeEqualsDirect) {
  ToyRunner direct(GetParam()), speculative(GetParam());
  auto a = frequencies(direct, 0, 11, kDraws), b = frequencies(speculative, GetParam().width, 1234567, kDraws);
  EXPECT_TRUE(laws_agree(a, b));
  EXPECT_GT(speculative.accepted(), 0.2 * kDraws);
  if (GetParam().mode == VerifyMode::kToken) {
    EXPECT_NEAR(speculative.mean_label(), speculative.acceptance_of_judged(), 5e-3)
        << "labels are the acceptance probabilities";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, LawOfSteps,
    ::testing::Values(
        StepSettings{VerifyMode::kToken, [](SamplingParams&) {}, 2},
        StepSettings{VerifyMode::kToken, [](SamplingParams& p) { p.top_p = 0.8, p.temperature = 1.3; }, 2},
        StepSettings{VerifyMode::kToken, [](SamplingParams& p) { p.top_k = 3, p.frequency_penalty = 1.0; }, 2},
        StepSettings{VerifyMode::kBlock, [](SamplingParams&) {}, 2},
        StepSettings{VerifyMode::kBlock, [](SamplingParams& p) { p.min_p = 0.1, p.repetition_penalty = 1.4; }, 2},
        StepSettings{VerifyMode::kNoise, [](SamplingParams&) {}, 2}));

TEST(Verify, BlockAcceptsAtLeastAsManyDraftsAsTokenByToken) {
  ToyRunner token({VerifyMode::kToken, [](SamplingParams&) {}, 2}),
      block({VerifyMode::kBlock, [](SamplingParams&) {}, 2});
  frequencies(token, 2, 5, kDraws);
  frequencies(block, 2, 5, kDraws);
  EXPECT_GT(block.accepted(), token.accepted());
}

}  // namespace
}  // namespace deepinfer::sampling
