#include "tensor/dtype.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(E4M3, EveryCodeSurvivesARoundTrip) {
  for (int c = 0; c < 256; ++c) {
    float v = e4m3_to_float(static_cast<uint8_t>(c));
    if (std::isnan(v)) continue;
    EXPECT_EQ(float_to_e4m3(v), c) << v;
  }
}

TEST(E4M3, RoundsToTheNearestCodeTiesToEven) {
  std::mt19937 rng(1);
  for (int i = 0; i < 200000; ++i) {
    float v = std::ldexp(std::uniform_real_distribution<float>(-2, 2)(rng), static_cast<int>(rng() % 20) - 11);
    int best = 0;
    for (int c = 0; c < 256; ++c) {
      float d = std::fabs(e4m3_to_float(static_cast<uint8_t>(c)) - v),
            b = std::fabs(e4m3_to_float(static_cast<uint8_t>(best)) - v);
      if (d < b || (d == b && (c & 1) == 0 && (best & 1) == 1)) best = c;
    }
    EXPECT_EQ(e4m3_to_float(float_to_e4m3(v)), e4m3_to_float(static_cast<uint8_t>(best))) << v;
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-1e9f), 0xfe);
  EXPECT_EQ(float_to_e4m3(0x1p-10f), 0);      // tie between 0 and 2^-9
  EXPECT_EQ(float_to_e4m3(3 * 0x1p-10f), 2);  // tie between 1 and 2
  EXPECT_EQ(float_to_e4m3(0x1.fp-7f), 8);     // rounds up into the normal range
}

TEST(E2M1, FollowsTheCheckValuesOfTheSpecification) {
  auto r = [](float v) { return e2m1_to_float(float_to_e2m1(v)); };
  EXPECT_EQ(r(0.25f), 0.f);
  EXPECT_EQ(r(0.75f), 1.f);
  EXPECT_EQ(r(1.25f), 1.f);
  EXPECT_EQ(r(1.75f), 2.f);
  EXPECT_EQ(r(2.5f), 2.f);
  EXPECT_EQ(r(3.5f), 4.f);
  EXPECT_EQ(r(5.f), 4.f);
  EXPECT_EQ(r(7.f), 6.f);
  EXPECT_EQ(r(-1.6f), -1.5f);
}

TEST(UE8M0, TakesTheNextPowerOfTwo) {
  EXPECT_EQ(ue8m0_ceil(448.f, kInverseE4M3Max), 127);
  EXPECT_EQ(ue8m0_ceil(449.f, kInverseE4M3Max), 128);
  EXPECT_EQ(ue8m0_to_float(73), 0x1p-54f);
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
  EXPECT_EQ(ue8m0_to_float(0), 0x1p-127f);
}

TEST(BF16, RoundsToNearestEven) {
  EXPECT_EQ(round_bf16(1.00390625f), 1.f);
  EXPECT_EQ(round_bf16(1.01171875f), 1.015625f);
  EXPECT_TRUE(std::isnan(round_bf16(std::nanf(""))));
}

}  // namespace
}  // namespace deepinfer
