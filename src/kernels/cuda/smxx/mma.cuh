// Tensor core building blocks: coded rows to BF16 fragments, and the product of two fragments.
//
//   mma.m16n8k16: A holds 16 coded rows (weights, keys), B holds 8 columns (tokens, heads), both K-major. In a quad of
//   lanes, q = lane % 4, a thread owns the 32 columns (one scale group) 128 s + 32 q .. + 31 of "super group" s and
//   hands four of them to each of its 8 steps: which columns meet in a step does not matter as long as A and B agree,
//   and so every thread loads contiguous bytes and needs one scale.
//
//   Expanding codes two at a time with masks pairs columns that are not neighbours. B is stored in the same order:
//     kPairs8 (e4m3)  columns 0 2 1 3 4 6 5 7 of every 8;   kPairs4 (e2m1)  0 4 1 5 2 6 3 7;   kNatural (bf16)
//
//   Expanded values carry the factor kUnit = 2^-32, so that scales from 2^-90 to 2^33 neither overflow nor underflow;
//   sums are multiplied by its inverse at the end. All of it is exact.
#pragma once

#include "kernels/cuda/smxx/common.cuh"

namespace deepinfer::kernels::cuda {

// Place within its 8 columns of the column that is stored at i.
__host__ __device__ constexpr int column_at(Order order, int i) {
  return order == Order::kPairs8   ? (i & 4) | (i & 1) << 1 | (i & 2) >> 1
         : order == Order::kPairs4 ? (i & 1) << 2 | i >> 1
                                   : i;
}
// Where column c of 8 is stored.
__host__ __device__ constexpr int place_of(Order order, int c) {
  return order == Order::kPairs8   ? (c & 4) | (c & 1) << 1 | (c & 2) >> 1
         : order == Order::kPairs4 ? (c & 3) << 1 | c >> 2
                                   : c;
}

// 16-byte pieces of 32 columns.
__host__ __device__ constexpr int pieces_of(Format f) {
  return f == Format::kFp4 ? 1 : f == Format::kFp8 ? 2 : 4;
}
__host__ __device__ constexpr float inverse_unit(Format f) {
  return f == Format::kBF16 ? 1.f : 4294967296.f;
}

// Two equal BF16 factors that turn bare codes of this scale byte into values times kUnit.
template <Format F>
__device__ __forceinline__ uint32_t scale_factor(uint32_t scale) {
  const uint32_t exponent = min(scale + (F == Format::kFp4 ? 94u : 88u), 254u);
  return exponent << 7 | exponent << 23;
}
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Step s of 8: the thread's four columns as two registers, from its pieces of a coded row.
template <Format F, int kStep>
__device__ __forceinline__ void expand(const uint4 (&raw)[pieces_of(F)], uint32_t factor, uint32_t& low,
                                       uint32_t& high) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(raw);
  // Products instead of shifts where that is possible: logic and shifts share a unit that is the bottleneck.
  if constexpr (F == Format::kFp4) {
    const uint32_t w = kStep % 2 == 0 ? words[kStep / 2] : words[kStep / 2] >> 8;
    low = multiply((w & 0x000f000fu) * 0x1040u & 0x81c081c0u, factor);  // << 12 and << 6
    high = multiply((w & 0x00f000f0u) * 0x0104u & 0x81c081c0u, factor);
  } else if constexpr (F == Format::kFp8) {
    const uint32_t w = words[kStep];
    low = multiply((w & 0x007f007fu) * 0x0010u + (w & 0x00800080u) * 0x0100u, factor);
    high = multiply((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), factor);
  } else {
    low = words[2 * kStep];
    high = words[2 * kStep + 1];
  }
}

// Steps 2 kPair and 2 kPair + 1 of rows r (raw[0]) and r + 8 (raw[1]) as operands of mma.
template <Format F, int kPair>
__device__ __forceinline__ void expand_pair(const uint4 (&raw)[2][pieces_of(F)], const uint32_t (&factor)[2],
                                            uint32_t (&first)[4], uint32_t (&second)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    expand<F, 2 * kPair>(raw[i], factor[i], first[i], first[i + 2]);
    expand<F, 2 * kPair + 1>(raw[i], factor[i], second[i], second[i + 2]);
  }
}

// c += A B; a = rows (r, r + 8, r, r + 8) x columns (2, 2, 2, 2), c = rows (r, r, r + 8, r + 8), r = lane / 4, columns
// 2 q and 2 q + 1.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// f(std::integral_constant<int, i>) for i in 0 .. kCount - 1, unrolled.
template <int I>
struct Constant {
  static constexpr int value = I;
};
template <int kCount, int kAt = 0, typename F>
__device__ __forceinline__ void unrolled(F&& f) {
  if constexpr (kAt < kCount) {
    f(Constant<kAt>{});
    unrolled<kCount, kAt + 1>(f);
  }
}

}  // namespace deepinfer::kernels::cuda
