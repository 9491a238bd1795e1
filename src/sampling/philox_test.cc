#include "sampling/philox.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace deepinfer::sampling {
namespace {

using Block = std::array<uint32_t, 4>;

// Random123 1.14, tests/kat_vectors, lines "philox4x32 10".
TEST(Philox, MatchesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheCounterAndKeyMatters) {
  Stream s{.seed = 0x1234567890abcdefull, .index = 17, .choice = 2};
  Block base = random_words(s, Purpose::kNoise, 5);
  EXPECT_NE(base, random_words(s, Purpose::kCoin, 5));
  EXPECT_NE(base, random_words(s, Purpose::kNoise, 6));
  for (Stream other :
       {Stream{s.seed ^ 1, 17, 2}, Stream{s.seed ^ (1ull << 32), 17, 2}, Stream{s.seed, 18, 2}, Stream{s.seed, 17, 3}})
    EXPECT_NE(base, random_words(other, Purpose::kNoise, 5));
}

TEST(Philox, UniformStaysInsideItsLimits) {
  EXPECT_EQ(uniform_of(0), 0x1p-33f);
  EXPECT_EQ(uniform_of(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_EQ(uniform_of(0x80000000u), 0.5f);
}

TEST(Philox, ClockIsTheLogarithmToSinglePrecision) {
  double worst = 0;
  float last = 0;
  for (uint64_t word = 0; word < 1ull << 32; word += word / 1024 + 1) {
    float u = uniform_of(static_cast<uint32_t>(word));
    float e = exponential_of(u);
    worst = std::max(worst, std::abs(e / -std::log1p(-static_cast<double>(u)) - 1.0));
    EXPECT_GE(e, u);
    EXPECT_GE(e, last * (1 - 2e-7f));
    last = e;
  }
  EXPECT_LT(worst, 2.5e-7);
  EXPECT_EQ(exponential_of(0x1p-33f), 0x1p-33f);
}

TEST(Philox, ReproducesTheCommittedVectors) {
  auto file = json::parse_file(DI_SOURCE_DIR "/tests/golden/philox_vectors.json");
  ASSERT_TRUE(file) << file.error().message;
  int count = 0;
  for (const auto& v : file->at("vectors").as_array()) {
    auto number = [&](const char* name) { return static_cast<uint32_t>(v.at(name).to_number<int64_t>()); };
    Stream s{.seed = std::stoull(v.at("seed").as_string().c_str(), nullptr, 16),
             .index = number("index"),
             .choice = number("choice")};
    uint32_t id = number("id");
    uint32_t word = random_words(s, static_cast<Purpose>(number("purpose")), id >> 2)[id & 3];
    EXPECT_EQ(word, number("word"));
    float u = uniform_of(word);
    EXPECT_EQ(std::bit_cast<uint32_t>(u), number("u_bits"));
    EXPECT_EQ(std::bit_cast<uint32_t>(exponential_of(u)), number("clock_bits"));
    ++count;
  }
  EXPECT_EQ(count, 64);
}

}  // namespace
}  // namespace deepinfer::sampling
