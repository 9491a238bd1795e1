#include "sampling/row_kernels.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::mt19937& rng, int vocab, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> z(static_cast<std::size_t>(vocab));
  for (float& v : z) v = normal(rng);
  for (int i = 0; i < vocab / 50; ++i) z[rng() % z.size()] = -kInf;
  for (int i = 0; i < vocab / 10; ++i) z[rng() % z.size()] = z[rng() % z.size()];  // ties
  return z;
}

TEST(RowKernels, WeightIsTheExponentialToSinglePrecision) {
  double worst = 0;
  for (float x = 0; x > -27.7f; x -= 0.00137f)
    worst = std::max(worst, std::abs(weight_of(x, 0, 1) / std::exp(double{x}) - 1));
  EXPECT_LT(worst, 2e-7);
  EXPECT_EQ(weight_of(5, 5, 3), 1.0f);
  EXPECT_EQ(weight_of(-kInf, 5, 1), 0.0f);
  EXPECT_EQ(weight_of(-28, 0, 1), 0.0f);
  EXPECT_GE(mass_of(weight_of(-27.7f, 0, 1)), 1u);
}

// Each row length around the vector and block sizes, with and without a mask: equal bits.
TEST(RowKernels, AllInstructionSetsAgreeBitForBit) {
  const RowKernels &a = portable_kernels(), &b = row_kernels();
  std::mt19937 rng(7);
  for (int vocab : {1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 129, 1000, 4099})
    for (int round = 0; round < 24; ++round) {
      auto z = random_logits(rng, vocab, round % 3 == 0 ? 0.5f : 6.0f);
      std::vector<uint32_t> words(static_cast<std::size_t>(vocab + 31) / 32);
      for (auto& w : words) w = rng();
      const uint32_t* mask = round % 2 ? words.data() : nullptr;
      std::size_t room = static_cast<std::size_t>(vocab + kSlack),
                  blocks = static_cast<std::size_t>(vocab + kBlockIds - 1) / kBlockIds;
      std::vector<float> tops[2] = {std::vector<float>(blocks), std::vector<float>(blocks)};
      bool valid[2];
      float max = a.max(z.data(), mask, vocab, tops[0].data(), &valid[0]);
      EXPECT_EQ(max, b.max(z.data(), mask, vocab, tops[1].data(), &valid[1]));
      EXPECT_EQ(valid[0], valid[1]);
      EXPECT_EQ(tops[0], tops[1]);
      if (max == -kInf) continue;
      EXPECT_EQ(a.first_equal(z.data(), mask, vocab, max), b.first_equal(z.data(), mask, vocab, max));
      std::vector<int32_t> ids[2] = {std::vector<int32_t>(room), std::vector<int32_t>(room)};
      std::vector<float> kept[2] = {std::vector<float>(room), std::vector<float>(room)},
                         weights[2] = {kept[0], kept[0]};
      int count[2];
      uint64_t total[2];
      float inverse = 0.3f + static_cast<float>(round) * 0.1f,
            cut = round % 4 == 0 ? -kInf : max - 0.3f * static_cast<float>(round);
      for (int i : {0, 1})
        count[i] = (i ? b : a).gather(
            {z.data(), mask, vocab, max, inverse, cut, ids[i].data(), kept[i].data(), weights[i].data()}, &total[i]);
      ASSERT_EQ(count[0], count[1]);
      EXPECT_EQ(total[0], total[1]);
      auto same = [&](const auto& x, const auto& y, int n) {
        return std::memcmp(x.data(), y.data(), sizeof(x[0]) * static_cast<std::size_t>(n)) == 0;
      };
      EXPECT_TRUE(same(ids[0], ids[1], count[0]));
      EXPECT_TRUE(same(kept[0], kept[1], count[0]));
      EXPECT_TRUE(same(weights[0], weights[1], count[0]));
      Race race = Race::of({.seed = rng(), .index = static_cast<uint32_t>(round), .choice = 1}, Purpose::kNoise);
      int sparse = a.race(race, ids[0].data(), weights[0].data(), count[0]);
      EXPECT_EQ(sparse, b.race(race, ids[0].data(), weights[0].data(), count[0]));
      for (int i : {0, 1})
        total[i] = (i ? b : a).weigh({z.data(), mask, vocab, max, inverse, cut, nullptr, nullptr, weights[i].data()});
      EXPECT_EQ(total[0], total[1]);
      EXPECT_TRUE(same(weights[0], weights[1], vocab));
      int dense = a.race(race, nullptr, weights[0].data(), vocab);
      EXPECT_EQ(dense, b.race(race, nullptr, weights[0].data(), vocab));
      if (cut == -kInf) {
        EXPECT_EQ(dense, ids[0][static_cast<std::size_t>(sparse)]);
      }
    }
}

TEST(RowKernels, InvalidLogitsAreSeenEvenWhereTheMaskForbidsThem) {
  for (const RowKernels* k : {&portable_kernels(), &row_kernels()})
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInf})
      for (int at : {0, 15, 16, 64, 99}) {
        std::vector<float> z(100, 1.0f);
        std::vector<uint32_t> mask(4, 0u);
        z[static_cast<std::size_t>(at)] = bad;
        bool valid = true;
        k->max(z.data(), mask.data(), 100, nullptr, &valid);
        EXPECT_FALSE(valid) << k->isa << " " << at;
      }
}

}  // namespace
}  // namespace deepinfer::sampling
