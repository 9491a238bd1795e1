// Element types and the scalar formats of the checkpoint.
//
//   bf16   upper half of an fp32
//   e4m3   4 exponent, 3 mantissa bits, no infinity, 0x7f / 0xff are NaN, largest 448
//   e2m1   codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign
//   ue8m0  byte b is 2^(b - 127), 255 is NaN
//
// Rounding is to nearest even throughout (spec: model.md 6.1).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer {

enum class DType : uint8_t { kF32, kBF16, kI32, kI64, kI8, kU8, kE4M3, kUE8M0 };

constexpr int dtype_bytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}
const char* dtype_name(DType t);

struct bf16 {
  uint16_t bits = 0;
};

inline float to_float(bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}
inline bf16 to_bf16(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};  // keep NaN a NaN
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
inline float round_bf16(float v) {
  return to_float(to_bf16(v));
}

// 2^(b - 127) for any byte; 0 is 2^-127 (subnormal), 255 gives NaN.
inline float ue8m0_to_float(uint8_t b) {
  if (b == 0) return 0x1p-127f;
  if (b == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 23);
}
// Scale byte of a group with maximum `amax` and format limit z, inverse = fp32(1 / z): smallest power of two >= amax /
// z.
inline uint8_t ue8m0_ceil(float amax, float inverse_limit) {
  uint32_t u = std::bit_cast<uint32_t>(amax * inverse_limit);
  return static_cast<uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0));
}

float e4m3_to_float(uint8_t code);  // table look-up
uint8_t float_to_e4m3(float v);     // clamps to +-448; NaN gives 0x7f
inline float e2m1_to_float(uint8_t code) {
  constexpr float kValues[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  return kValues[code & 15];
}
uint8_t float_to_e2m1(float v);  // ties to the even code, saturates at 6

inline constexpr float kE4M3Max = 448.f, kE2M1Max = 6.f;
inline constexpr float kInverseE4M3Max = 1.f / 448.f, kInverseE2M1Max = 1.f / 6.f;

}  // namespace deepinfer
