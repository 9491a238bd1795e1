// Sixteen-lane vectors, the one vocabulary of the kernel bodies: VF floats, VI int32 or 64 raw bytes, VM lane mask.
//
// Every instruction set gives the same bits for the same body: 16 lanes everywhere, fma only where it is written, sums
// of lanes as the tree (l, l + 8), (l, l + 4), (l, l + 2), (l, l + 1), and integer products that are exact.
//
// Everything sits in unnamed namespaces: a unit compiled with an instruction set's flags must not hand an inline
// function to the linker that a unit without them could pick up. For the same reason bodies use no std:: containers, no
// checks and no formatting.
#pragma once

#if defined(__AVX512VNNI__)
#include "kernels/cpu/simd_avx512.h"
#else
#include "kernels/cpu/simd_avx2.h"
#endif

namespace deepinfer::kernels::cpu {
namespace {

DI_INLINE VF negate(VF a) {
  return as_float(xori(bits(a), seti(static_cast<int32_t>(0x80000000u))));
}
DI_INLINE VF vabs(VF a) {
  return as_float(andi(bits(a), seti(0x7fffffff)));
}

// Byte kByte of each lane as e4m3. Codes below the smallest exponent are taken as 2^-6 (1 + m / 8) and 2^-6 subtracted:
// exact, and no step meets a subnormal float, which would cost a microcode assist.
template <int kByte>
DI_INLINE VF e4m3_value(VI w) {
  const VI top = kByte == 3 ? w : slli<24 - 8 * kByte>(w);
  const VI magnitude = addi(srli<4>(andi(top, seti(0x7f000000))), seti(120 << 23));
  const VI sign = andi(top, seti(static_cast<int32_t>(0x80000000u)));
  const VF normal = as_float(magnitude), small = sub(as_float(addi(magnitude, seti(1 << 23))), set(0x1p-6f));
  return as_float(ori(bits(pick(less(normal, set(0x1p-6f)), small, normal)), sign));
}
// ue8m0 byte kByte of each lane; 0 is the subnormal 2^-127, 255 (refused at load) would be infinite.
template <int kByte>
DI_INLINE VF ue8m0_value(VI w) {
  const VI top = kByte == 3 ? w : slli<24 - 8 * kByte>(w);
  return as_float(maxu(andi(srli<1>(top), seti(0x7f800000)), seti(0x00400000)));
}

// Codes of v, |v| <= 448 after clamping, to nearest even.
DI_INLINE VI e4m3_code(VF v) {
  const VI sign = andi(srli<24>(bits(v)), seti(0x80));
  const VF magnitude = vmin(vabs(v), set(448.f));
  const VI u = bits(magnitude);
  const VI normal = subi(srli<20>(addi(addi(u, seti(0x7ffff)), andi(srli<20>(u), seti(1)))), seti((127 - 7) << 3));
  const VI small = subi(bits(add(magnitude, set(0x1p14f))), bits(set(0x1p14f)));  // steps of 2^-9
  return ori(sign, pick_int(less(magnitude, set(0x1p-6f)), small, normal));
}
// Value of the code of v.
DI_INLINE VF e4m3_round(VF v) {
  const VI sign = andi(bits(v), seti(static_cast<int32_t>(0x80000000u)));
  const VF magnitude = vmin(vabs(v), set(448.f));
  const VI u = bits(magnitude);
  const VI normal =
      andi(addi(addi(u, seti(0x7ffff)), andi(srli<20>(u), seti(1))), seti(static_cast<int32_t>(0xfff00000u)));
  const VF small = sub(add(magnitude, set(0x1p14f)), set(0x1p14f));
  return as_float(ori(sign, pick_int(less(magnitude, set(0x1p-6f)), bits(small), normal)));
}
DI_INLINE VI e2m1_code(VF v) {
  const VI sign = andi(srli<28>(bits(v)), seti(8));
  const VF magnitude = vmin(vabs(v), set(6.f));
  const VI u = bits(magnitude);
  const VI normal = subi(srli<22>(addi(addi(u, seti(0x1fffff)), andi(srli<22>(u), seti(1)))), seti(126 << 1));
  const VI small = subi(bits(add(magnitude, set(0x1p22f))), bits(set(0x1p22f)));  // steps of 0.5
  return ori(sign, pick_int(less(magnitude, set(1.f)), small, normal));
}

// e^x, error below 2 ulp; 0 below -87.3, infinite above 88.72.
DI_INLINE VF vexp(VF x) {
  const VM tiny = less(x, set(-87.3f));
  x = vmax(vmin(x, set(100.f)), set(-87.3f));  // above 88.72 the product below overflows, as it should
  const VF n = round_to_integer(mul(x, set(1.44269504f)));
  VF r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  VF p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set(1.f));
  return pick(tiny, zero(), times_power_of_two(p, n));
}
// 2^x for x <= 0, error below 2 ulp; 0 below -126.
DI_INLINE VF vexp2(VF x) {
  const VM tiny = less(x, set(-126.f));
  x = vmax(set(-126.f), x);  // in this order a NaN stays one
  const VF n = round_to_integer(x), r = sub(x, n);
  VF p = set(1.535336188e-4f);
  p = fma(p, r, set(1.339887440e-3f));
  p = fma(p, r, set(9.618437357e-3f));
  p = fma(p, r, set(5.550332471e-2f));
  p = fma(p, r, set(2.402264791e-1f));
  p = fma(p, r, set(6.931472028e-1f));
  return pick(tiny, zero(), times_power_of_two(fma(p, r, set(1.f)), n));
}
DI_INLINE VF vsigmoid(VF x) {
  return div(set(1.f), add(set(1.f), vexp(negate(x))));
}

// Natural logarithm of positive normal x, error below 2 ulp.
DI_INLINE VF vlog(VF x) {
  const VI u = bits(x);
  const VI shifted = subi(u, seti(0x3f3504f3));  // sqrt(1/2)
  const VF e = to_float(srai<23>(shifted));
  const VF m = as_float(addi(andi(shifted, seti(0x007fffff)), seti(0x3f3504f3)));
  const VF f = sub(m, set(1.f)), z = mul(f, f);
  VF p = set(7.0376836292e-2f);
  p = fma(p, f, set(-1.1514610310e-1f));
  p = fma(p, f, set(1.1676998740e-1f));
  p = fma(p, f, set(-1.2420140846e-1f));
  p = fma(p, f, set(1.4249322787e-1f));
  p = fma(p, f, set(-1.6668057665e-1f));
  p = fma(p, f, set(2.0000714765e-1f));
  p = fma(p, f, set(-2.4999993993e-1f));
  p = fma(p, f, set(3.3333331174e-1f));
  VF y = mul(mul(p, f), z);
  y = fma(e, set(-2.12194440e-4f), y);
  y = fma(z, set(-0.5f), y);
  return fma(e, set(0.693359375f), add(f, y));
}

// Sixteen columns of 16 bytes: out[c], lane r = bytes 4 c .. 4 c + 3 of rows[r].
DI_INLINE void transpose_16x16(const uint8_t* const* rows, VI* out) {
  const VI v0 = load_4x16(rows[0], rows[4], rows[8], rows[12]), v1 = load_4x16(rows[1], rows[5], rows[9], rows[13]);
  const VI v2 = load_4x16(rows[2], rows[6], rows[10], rows[14]), v3 = load_4x16(rows[3], rows[7], rows[11], rows[15]);
  const VI a = zip_lo32(v0, v1), b = zip_hi32(v0, v1), c = zip_lo32(v2, v3), d = zip_hi32(v2, v3);
  out[0] = zip_lo64(a, c), out[1] = zip_hi64(a, c), out[2] = zip_lo64(b, d), out[3] = zip_hi64(b, d);
}

// f(begin, count) over pieces of 16 of [0, n), the last one shorter.
template <typename F>
DI_INLINE void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, 16);
  if (i < n) f(i, static_cast<int>(n - i));
}
DI_INLINE VF load_any(const float* p, int n) {
  return n == 16 ? load(p) : load_n(p, n);
}
DI_INLINE void store_any(float* p, VF v, int n) {
  n == 16 ? store(p, v) : store_n(p, v, n);
}

// sum x[i]^2: four accumulators take pieces of 16 in turn, ((0 + 1) + (2 + 3)), then the lane tree.
DI_INLINE float sum_squares(const float* x, int64_t n) {
  VF s[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; ++k) {
      const VF v = load(x + i + 16 * k);
      s[k] = fma(v, v, s[k]);
    }
  }
  for (int k = 0; i < n; i += 16, ++k) {
    const VF v = load_any(x + i, static_cast<int>(n - i < 16 ? n - i : 16));
    s[k] = fma(v, v, s[k]);
  }
  return reduce(add(add(s[0], s[1]), add(s[2], s[3])));
}
DI_INLINE float inverse_rms(float squares, int64_t n, float eps) {
  return 1.f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

// y = gain * (x * factor)
DI_INLINE void scale_by_gain(const float* x, const bf16* gain, float factor, int64_t n, float* y) {
  for_lanes(n, [&](int64_t c, int count) {
    const VF g = count == 16 ? load_bf16(gain + c) : load_bf16_n(gain + c, count);
    store_any(y + c, mul(g, mul(load_any(x + c, count), set(factor))), count);
  });
}
DI_INLINE void norm_row(const float* x, const bf16* gain, int64_t n, float eps, float* y) {
  scale_by_gain(x, gain, inverse_rms(sum_squares(x, n), n, eps), n, y);
}

// Turns the last 2 pairs channels of x as adjacent pairs; y may be x.
DI_INLINE void rotate_row(const float* x, int64_t n, const float* cos, const float* sin, int64_t pairs, bool inverse,
                          float* y) {
  const int64_t still = n - 2 * pairs;
  if (x != y) __builtin_memcpy(y, x, static_cast<size_t>(still) * 4);
  alignas(64) static constexpr uint32_t kEvenNegative[17] = {0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0,
                                                             0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0,
                                                             0x80000000u, 0, 0x80000000u, 0, 0x80000000u};
  const VI flip = loadi(kEvenNegative + (inverse ? 1 : 0));  // (a, b) meets (-s, s), or (s, -s) backwards
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    const VF v = load(x + still + 2 * i), s = as_float(xori(bits(load_pairs(sin + i)), flip));
    store(y + still + 2 * i, add(mul(v, load_pairs(cos + i)), mul(swap_pairs(v), s)));
  }
  for (; i < pairs; ++i) {
    const float a = x[still + 2 * i], b = x[still + 2 * i + 1], s = inverse ? -sin[i] : sin[i];
    y[still + 2 * i] = a * cos[i] - b * s;
    y[still + 2 * i + 1] = a * s + b * cos[i];
  }
}

}  // namespace
}  // namespace deepinfer::kernels::cpu
