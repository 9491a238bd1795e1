// The loops over a vocabulary-wide row, one set of functions per instruction set, equal bit for bit.
//
//   weight  w = exp((z - max) x inverse_temperature) in fp32, one polynomial; exactly 0 below 2^-40
//   mass    floor(w x 2^40) as an integer: sums are exact, so the order of adding, the vector width and the way a cut
//   is
//           searched cannot change a result. A row of 2^23 ids fits in 64 bits
//   race    the id with the smallest clock / weight wins (exponential clocks, sampling/philox.h), the lower id on ties
//
// Masks are words of 32 ids, bit 1 = allowed; nullptr allows all. Outputs of `gather` need kSlack elements of room.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "sampling/philox.h"

namespace deepinfer::sampling {

inline constexpr float kMinExponent = -27.725887f;  // log(2^-40), rounded towards zero
inline constexpr float kMassScale = 0x1p40f;
inline constexpr int kBlockIds = 64;  // ids per entry of block_max
inline constexpr int kSlack = 16;     // a vector of stores may run over by less than this

inline uint64_t mass_of(float weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(weight * kMassScale));
}

// exp on [kMinExponent, 0]: 2^k (1 + r + r^2 P(r)), |r| <= log(2) / 2; coefficients of Cephes' expf.
inline constexpr float kExpPoly[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                      4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kRound = 0x1.8p23f;  // added and taken away, it rounds to an integer

inline float weight_of(float z, float max, float inverse_temperature) {
  float x = (z - max) * inverse_temperature;
  if (!(x >= kMinExponent)) return 0.0f;
  float shifted = std::fma(x, kLog2E, kRound);  // its low bits are k
  float k = shifted - kRound;
  float r = std::fma(k, -kLn2High, x);
  r = std::fma(k, -kLn2Low, r);
  float p = kExpPoly[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kExpPoly[i]);
  p = std::fma(p, r * r, r) + 1.0f;
  return std::bit_cast<float>(std::bit_cast<int32_t>(p) + static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) << 23));
}

struct GatherParams {
  const float* logits;   // [vocab]
  const uint32_t* mask;  // [ceil(vocab / 32)] or nullptr
  int vocab;
  float max, inverse_temperature;
  float cut;           // ids with logits below it are weighed but not kept
  int32_t* ids;        // [kept + kSlack], ascending
  float* kept_logits;  // [kept + kSlack]
  float* weights;      // [kept + kSlack]
};

struct Race {
  uint32_t key0, key1;              // seed
  uint32_t index, purpose, choice;  // the counter without its group

  static Race of(const Stream& s, Purpose p) {
    return {static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32), s.index, static_cast<uint32_t>(p),
            s.choice};
  }
};

struct RowKernels {
  const char* isa;
  // Largest allowed logit (-inf: none); block_max[i] is that of ids [64 i, 64 i + 64), nullptr: not wanted.
  // *is_valid becomes false if any logit, allowed or not, is NaN or +inf.
  float (*max)(const float* logits, const uint32_t* mask, int vocab, float* block_max, bool* is_valid);
  int (*first_equal)(const float* logits, const uint32_t* mask, int vocab, float value);
  // Sum of masses of all allowed ids; keeps those with logit >= cut. Returns how many were kept.
  int (*gather)(const GatherParams& p, uint64_t* total);
  // weights[vocab] of all ids, 0 for those that are not allowed; returns the sum of masses.
  uint64_t (*weigh)(const GatherParams& p);
  // Position of the winner: an index into ids, or an id itself when ids is nullptr (then weights is [count] by id).
  int (*race)(const Race& r, const int32_t* ids, const float* weights, int count);
};

const RowKernels& portable_kernels();
const RowKernels& row_kernels();  // the fastest that this machine runs

}  // namespace deepinfer::sampling
