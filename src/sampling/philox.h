// Counter-based random numbers: every draw is a function of (seed, token index, purpose, choice), nothing else.
//
//   key      (low, high 32 bits) of the request's seed
//   counter  (absolute index of the token, purpose, group, choice index of `n`)
//   u        (word + 0.5) x 2^-32 in double, rounded to fp32, clamped to [2^-33, 1 - 2^-24]
//   E        -log1p(-u), an exponential clock, by one fp32 polynomial whose operations and order are fixed
//
// Per-token noise of id v is word v mod 4 of group v / 4; scalar draws use word 0 of group 0. The same source runs on
// every backend: tests/golden/philox_vectors.json holds 64 vectors that each one must reproduce bit by bit (spec:
// sampling.md 3).
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer::sampling {

enum class Purpose : uint32_t { kNoise = 0, kCoin = 1, kResidual = 2, kDraft = 3 };

// Whose random numbers: the place in the output, not the place in the batch.
struct Stream {
  uint64_t seed = 0;
  uint32_t index = 0;   // absolute index of the token being produced (prompt included)
  uint32_t choice = 0;  // which of the `n` answers
};

constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;  // Salmon et al. 2011, Philox4x32
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;  // golden ratio, sqrt(3) - 1
constexpr int kPhiloxRounds = 10;

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    uint64_t p0 = uint64_t{kPhiloxM0} * c[0], p1 = uint64_t{kPhiloxM1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return c;
}

constexpr std::array<uint32_t, 4> random_words(const Stream& s, Purpose purpose, uint32_t group) {
  return philox4x32({s.index, static_cast<uint32_t>(purpose), group, s.choice}, static_cast<uint32_t>(s.seed),
                    static_cast<uint32_t>(s.seed >> 32));
}

inline float uniform_of(uint32_t word) {
  float u = static_cast<float>((static_cast<double>(word) + 0.5) * 0x1p-32);
  return u < 0x1p-33f ? 0x1p-33f : (u > 1.0f - 0x1p-24f ? 1.0f - 0x1p-24f : u);
}

// The polynomial of log(1 + f) on [sqrt(1/2) - 1, sqrt(2) - 1]: f - f^2/2 + f^3 P(f), largest relative error 1e-7.
inline constexpr float kLogPoly[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                      -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                      2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
// log 2 in two parts; the first has 9 trailing zero bits, so k x kLn2High is exact for |k| < 512.
inline constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
inline constexpr float kLogSplit = 0.29289322f;  // 1 - sqrt(1/2): below it 1 - u needs no scaling and f = -u is exact

// E = -log1p(-u) for u in [2^-33, 1 - 2^-24]. Every fma is one: backends must not split or join operations.
inline float exponential_of(float u) {
  float f = -u, k = 0.0f;
  if (u >= kLogSplit) {
    float y = 1.0f - u;
    int32_t bits = std::bit_cast<int32_t>(y);
    int32_t e = (bits - 0x3f3504f3) >> 23;  // y = 2^e m with m in [sqrt(1/2), sqrt(2))
    k = static_cast<float>(e);
    f = std::bit_cast<float>(bits - (e << 23)) - 1.0f;
  }
  float p = kLogPoly[0];
  for (int i = 1; i < 9; ++i) p = std::fma(p, f, kLogPoly[i]);
  float square = f * f;
  float tail = std::fma(p * f, square, k * kLn2Low);
  tail = std::fma(-0.5f, square, tail);
  return -std::fma(k, kLn2High, f + tail);
}

inline float uniform(const Stream& s, Purpose purpose) {
  return uniform_of(random_words(s, purpose, 0)[0]);
}

inline float token_clock(const Stream& s, Purpose purpose, int32_t id) {
  return exponential_of(
      uniform_of(random_words(s, purpose, static_cast<uint32_t>(id) >> 2)[static_cast<uint32_t>(id) & 3]));
}

}  // namespace deepinfer::sampling
