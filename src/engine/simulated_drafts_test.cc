#include "engine/simulated_drafts.h"

#include <cmath>

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

TEST(SimulatedDrafts, RoundsHaveTheMeanAndConfidencesAreTrue) {
  for (double mean : {1.5, 3.51, 5.3}) {
    SimulatedDrafts drafts({.mean_tokens = mean, .seed = 7}, 5);
    constexpr int kRounds = 40000;
    double tokens = 0, promised = 0, kept = 0;
    for (uint32_t round = 0; round < kRounds; ++round) {
      sampling::Stream block{.seed = 3, .index = round};
      int k = 0;
      for (; k < 5 && drafts.is_accepted(block, k); ++k) ++kept;
      tokens += k + 1;
      for (int j = 0; j <= std::min(k, 4); ++j) promised += 1 / (1 + std::exp(-drafts.confidence_logit(block, j)));
    }
    EXPECT_NEAR(tokens / kRounds, mean, 0.03);
    EXPECT_NEAR(kept / promised, 1, 0.02);
  }
}

TEST(SimulatedDrafts, AreOfTheirOwnStreamAndSeed) {
  SimulatedDrafts drafts({.mean_tokens = 3, .seed = 1}, 5), again({.mean_tokens = 3, .seed = 1}, 5),
      other({.mean_tokens = 3, .seed = 2}, 5);
  sampling::Stream block{.seed = 5, .index = 9};
  EXPECT_EQ(drafts.confidence_logit(block, 2), again.confidence_logit(block, 2));
  EXPECT_NE(drafts.confidence_logit(block, 2), other.confidence_logit(block, 2));
  EXPECT_NE(drafts.confidence_logit(block, 2), drafts.confidence_logit({.seed = 6, .index = 9}, 2));
}

}  // namespace
}  // namespace deepinfer::engine
