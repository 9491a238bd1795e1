// Rows to cache records (model.md 6.1, 6.3).
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

constexpr int64_t kMaxDim = 4096;  // of a head; rows of this size live on the stack

// 32 values to e4m3 codes and their scale byte.
DI_INLINE void encode_window(const float* x, int64_t dim, uint8_t* record) {
  for (int64_t g = 0; g < dim / 32; ++g, x += 32) {
    const float top = group_max(x);
    const uint32_t u = std::bit_cast<uint32_t>((top > 1e-4f ? top : 1e-4f) * kInverseE4M3Max);
    const uint32_t exponent = (u >> 23) + ((u & 0x7fffffu) != 0);
    const VF inverse = set(std::bit_cast<float>((254 - exponent) << 23));
    store_u8(record + 32 * g, e4m3_code(mul(load(x), inverse)));
    store_u8(record + 32 * g + 16, e4m3_code(mul(load(x + 16), inverse)));
    record[dim + g] = static_cast<uint8_t>(exponent);
  }
}
DI_INLINE void store_nibbles(const VI code, uint8_t* out) {
  uint8_t c[16];
  store_u8(c, code);
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(c[2 * i] | c[2 * i + 1] << 4);
}
DI_INLINE uint8_t fp4e8_scale(const float* x) {
  const float top = group_max(x), floor = 6 * 0x1p-126f;
  const uint32_t u = std::bit_cast<uint32_t>((top > floor ? top : floor) * kInverseE2M1Max);
  return static_cast<uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0));
}
DI_INLINE void encode_index_key(const float* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < dim / 32; ++g, x += 32) {
    scales[g] = fp4e8_scale(x);
    const VF inverse = set(std::bit_cast<float>((254u - scales[g]) << 23));
    store_nibbles(e2m1_code(mul(load(x), inverse)), codes + 16 * g);
    store_nibbles(e2m1_code(mul(load(x + 16), inverse)), codes + 16 * g + 8);
  }
}
DI_INLINE void encode_entry(const float* x, int64_t dim, uint8_t* record) {
  for (int64_t g = 0; g < dim / 16; ++g, x += 16) {
    const VF v = load(x);
    const float top = reduce_max(vabs(v)), floor = 6 * 0x1p-9f;
    const VF ratio = set((top > floor ? top : floor) / kE2M1Max);
    uint8_t code[16];
    store_u8(code, e4m3_code(ratio));
    record[dim / 2 + g] = code[0];
    store_nibbles(e2m1_code(div(v, e4m3_round(ratio))), record + 8 * g);
  }
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
