#include "bench/roofline/peaks.h"

#include <immintrin.h>

namespace deepinfer::bench {
namespace {

constexpr int kIterations = 20000;
volatile float g_sink;  // keeps results alive

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
}
bool has_bf16() {
  return __builtin_cpu_supports("avx512bf16");
}

__attribute__((target("avx512f"))) float sum_avx512(const float* p, size_t n) {
  __m512 a[8];
  for (auto& x : a) x = _mm512_setzero_ps();
  for (size_t i = 0; i + 128 <= n; i += 128) {
    for (int k = 0; k < 8; ++k) a[k] = _mm512_add_ps(a[k], _mm512_loadu_ps(p + i + 16 * k));
  }
  float s = 0;
  for (auto& x : a) {
    float lanes[16];
    _mm512_storeu_ps(lanes, x);
    for (float v : lanes) s += v;
  }
  return s;
}
__attribute__((target("avx2"))) float sum_avx2(const float* p, size_t n) {
  __m256 a[8];
  for (auto& x : a) x = _mm256_setzero_ps();
  for (size_t i = 0; i + 64 <= n; i += 64) {
    for (int k = 0; k < 8; ++k) a[k] = _mm256_add_ps(a[k], _mm256_loadu_ps(p + i + 8 * k));
  }
  float s = 0;
  for (auto& x : a) {
    float lanes[8];
    _mm256_storeu_ps(lanes, x);
    for (float v : lanes) s += v;
  }
  return s;
}

// Twelve independent chains hide the latency of every instruction below. Written out, because compilers fold or spill
// them.
#define DI_TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define DI_ZMM_LOOP(name, target_list, zero, instruction)                                                              \
  __attribute__((target(target_list))) void name() {                                                                   \
    asm volatile("vpxord %%zmm30,%%zmm30,%%zmm30\n vpxord %%zmm31,%%zmm31,%%zmm31\n" zero("16") zero("17") zero("18")  \
                     zero("19") zero("20") zero("21") zero("22") zero("23") zero("24") zero("25") zero("26")           \
                         zero("27") "mov %0, %%ecx\n 1:\n" instruction("16") instruction("17") instruction("18")       \
                             instruction("19") instruction("20") instruction("21") instruction("22") instruction("23") \
                                 instruction("24") instruction("25") instruction("26")                                 \
                                     instruction("27") "dec %%ecx\n jnz 1b\n"                                          \
                 :                                                                                                     \
                 : "i"(kIterations)                                                                                    \
                 : "ecx", "cc", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",       \
                   "xmm25", "xmm26", "xmm27", "xmm30", "xmm31");                                                       \
  }
#define DI_ZERO(r) "vpxord %%zmm" r ",%%zmm" r ",%%zmm" r "\n"
#define DI_FMA(r) "vfmadd231ps %%zmm30,%%zmm31,%%zmm" r "\n"
#define DI_INT8(r) "vpdpbusd %%zmm30,%%zmm31,%%zmm" r "\n"
#define DI_INT16(r) "vpdpwssd %%zmm30,%%zmm31,%%zmm" r "\n"
#define DI_BF16(r) "vdpbf16ps %%zmm30,%%zmm31,%%zmm" r "\n"
DI_ZMM_LOOP(loop_fma_avx512, "avx512f", DI_ZERO, DI_FMA)
DI_ZMM_LOOP(loop_int8_avx512, "avx512f,avx512vnni", DI_ZERO, DI_INT8)
DI_ZMM_LOOP(loop_int16_avx512, "avx512f,avx512vnni", DI_ZERO, DI_INT16)
DI_ZMM_LOOP(loop_bf16_avx512, "avx512f,avx512bf16", DI_ZERO, DI_BF16)

__attribute__((target("avx2,fma"))) void loop_fma_avx2() {
  __m256 r[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (auto& v : r) v = x;
  for (int i = 0; i < kIterations; ++i) {
    for (auto& v : r) v = _mm256_fmadd_ps(v, x, y);
    asm volatile("" : "+x"(x), "+x"(y));
  }
  __m256 s = r[0];
  for (auto& v : r) s = _mm256_add_ps(s, v);
  g_sink = _mm256_cvtss_f32(s);
}
__attribute__((target("avx2"))) void loop_int_avx2(bool bytes) {
  __m256i r[8] = {}, x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(1);
  for (int i = 0; i < kIterations; ++i) {
    for (auto& v : r) {
      const __m256i product = bytes ? _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), y) : _mm256_madd_epi16(x, y);
      v = _mm256_add_epi32(v, product);
      asm volatile("" : "+x"(x), "+x"(y));
    }
  }
  __m256i s = r[0];
  for (auto& v : r) s = _mm256_add_epi32(s, v);
  g_sink = static_cast<float>(_mm256_cvtsi256_si32(s));
}

}  // namespace

double read_bytes(const float* data, size_t count) {
  g_sink = has_avx512() ? sum_avx512(data, count) : sum_avx2(data, count);
  return 4.0 * static_cast<double>(count);
}
double fma_f32() {
  if (!has_avx512()) return loop_fma_avx2(), 2.0 * 8 * 12 * kIterations;
  loop_fma_avx512();
  return 2.0 * 16 * 12 * kIterations;
}
double dot_int8() {
  if (!has_avx512()) return loop_int_avx2(true), 2.0 * 32 * 8 * kIterations;
  loop_int8_avx512();
  return 2.0 * 64 * 12 * kIterations;
}
double dot_int16() {
  if (!has_avx512()) return loop_int_avx2(false), 2.0 * 16 * 8 * kIterations;
  loop_int16_avx512();
  return 2.0 * 32 * 12 * kIterations;
}
double dot_bf16() {
  if (!has_bf16()) return 0;
  loop_bf16_avx512();
  return 2.0 * 32 * 12 * kIterations;
}

}  // namespace deepinfer::bench
