#include "tensor/dtype.h"

#include <algorithm>
#include <array>

namespace deepinfer {
namespace {

constexpr float decode_e4m3(int code) {
  int exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  float v = exponent == 0 ? mantissa * 0x1p-9f
                          : (8 + mantissa) * std::bit_cast<float>(static_cast<uint32_t>(exponent - 10 + 127) << 23);
  return code & 0x80 ? -v : v;
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> t{};
  for (int i = 0; i < 256; ++i) t[i] = decode_e4m3(i);
  return t;
}
constexpr std::array<float, 256> kE4M3Table = make_e4m3_table();

}  // namespace

const char* dtype_name(DType t) {
  constexpr const char* kNames[] = {"F32", "BF16", "I32", "I64", "I8", "U8", "F8_E4M3", "F8_E8M0"};
  return kNames[static_cast<int>(t)];
}

float e4m3_to_float(uint8_t code) {
  return kE4M3Table[code];
}

uint8_t float_to_e4m3(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80);
  float mag = std::fabs(v);
  if (std::isnan(mag)) return 0x7f;
  mag = std::min(mag, kE4M3Max);
  if (mag < 0x1p-6f) {  // subnormal step 2^-9; adding 2^14 * 2^-9... leaves the rounded multiple in the low bits
    constexpr float kMagic = 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(mag + kMagic) - std::bit_cast<uint32_t>(kMagic));
  }
  uint32_t m = std::bit_cast<uint32_t>(mag);
  m += 0x7ffff + ((m >> 20) & 1);  // round the 20 dropped mantissa bits to nearest even
  return sign | static_cast<uint8_t>((m >> 20) - ((127 - 7) << 3));
}

uint8_t float_to_e2m1(float v) {
  uint8_t sign = std::signbit(v) ? 8 : 0;
  float mag = std::min(std::fabs(v), kE2M1Max);
  // Code borders halfway between neighbours; a tie goes to the even code.
  uint8_t code = mag <= 0.25f   ? 0
                 : mag < 0.75f  ? 1
                 : mag <= 1.25f ? 2
                 : mag < 1.75f  ? 3
                 : mag <= 2.5f  ? 4
                 : mag < 3.5f   ? 5
                 : mag <= 5.f   ? 6
                                : 7;
  return sign | code;
}

}  // namespace deepinfer
