// What the tensor core attention kernels share: BF16 tiles in shared memory, and records expanded into them.
//
//   Expanded keys carry the factor 2^-26, so that no scale over- or underflows; scores and sums are freed of it.
#pragma once

#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/smxx/mma.cuh"

namespace deepinfer::kernels::cuda {

constexpr float kFreed = 67108864.f;  // 2^26

// 16-byte piece c of row r: pieces are exchanged within groups of 8 so that 8 rows of a column lie in different banks.
template <int kRowBytes>
__device__ __forceinline__ int piece_at(int r, int c) {
  return r * kRowBytes + ((c ^ (r & 7)) << 4);
}
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}

// Turned queries of kHeads heads of row t into shared memory, piece c of head h to place(h, c).
template <int kHeads, typename Place>
__device__ __forceinline__ void load_queries(const AttentionArgs& p, int64_t t, int first_head, uint8_t* queries,
                                             Place place) {
  constexpr int kDim = kFastAttentionDim, kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kPieces; i += static_cast<int>(blockDim.x)) {
    const int h = i / kPieces, c = i % kPieces;
    uint4 v = *reinterpret_cast<const uint4*>(p.q.row(t) + (first_head + h) * kDim + 8 * c);
    const int pair = 4 * c - (kDim / 2 - kFastAttentionPairs);
    if (pair >= 0) {
      auto* x = reinterpret_cast<__nv_bfloat162*>(&v);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float2 f = __bfloat1622float2(x[j]);
        turn(f.x, f.y, p.cos.row(t)[pair + j], p.sin.row(t)[pair + j]);
        x[j] = __floats2bfloat162_rn(f.x, f.y);
      }
    }
    *reinterpret_cast<uint4*>(queries + place(h, c)) = v;
  }
}

// Two equal BF16 factors that turn bare codes into expanded values.
__device__ __forceinline__ uint32_t window_factor(uint32_t scale) {
  const uint32_t exponent = min(scale + 94u, 254u);  // 2^(scale - 127) 2^120 2^-26
  return exponent << 7 | exponent << 23;
}
__device__ __forceinline__ uint32_t entry_factor(uint32_t scale) {
  const float factor = e4m3_value(static_cast<uint8_t>(scale)) * 1.2676506e30f;  // 2^126 2^-26
  const uint32_t b = __bfloat16_as_ushort(__float2bfloat16_rn(factor));
  return b | b << 16;
}
// 8 neighbouring channels.
__device__ __forceinline__ uint4 expand_e4m3(uint32_t low, uint32_t high, uint32_t factor) {
  const uint32_t a = multiply((low << 8 & 0x80008000u) | (low << 4 & 0x07f007f0u), factor),
                 b = multiply((low & 0x80008000u) | (low >> 4 & 0x07f007f0u), factor),
                 c = multiply((high << 8 & 0x80008000u) | (high << 4 & 0x07f007f0u), factor),
                 d = multiply((high & 0x80008000u) | (high >> 4 & 0x07f007f0u), factor);
  return {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632)};
}
__device__ __forceinline__ uint4 expand_e2m1(uint32_t w, uint32_t factor) {
  const uint32_t a = multiply((w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u), factor),  // columns 0, 4
      b = multiply((w << 8 & 0x80008000u) | (w << 2 & 0x01c001c0u), factor),              // 1, 5
      c = multiply((w << 4 & 0x80008000u) | (w >> 2 & 0x01c001c0u), factor),              // 2, 6
      d = multiply((w & 0x80008000u) | (w >> 6 & 0x01c001c0u), factor);                   // 3, 7
  return {__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632)};
}

// 2^exponent for an integer in [-126, 127].
__device__ __forceinline__ float power_of_two(float exponent) {
  return __int_as_float((static_cast<int>(exponent) + 127) << 23);
}

}  // namespace deepinfer::kernels::cuda
