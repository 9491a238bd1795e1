#include "sampling/row_kernels.h"

#include <limits>

namespace deepinfer::sampling {

const RowKernels* avx512_kernels();  // row_kernels_avx512.cc; nullptr where it was not built

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline bool is_allowed(const uint32_t* mask, int id) {
  return mask == nullptr || ((mask[id >> 5] >> (id & 31)) & 1);
}

// Bodies are forced inline so that the same source is compiled a second time with FMA instructions.
#define DI_INLINE inline __attribute__((always_inline))

DI_INLINE float max_body(const float* logits, const uint32_t* mask, int vocab, float* block_max, bool* is_valid) {
  float best = -kInfinity;
  bool valid = true;
  for (int begin = 0; begin < vocab; begin += kBlockIds) {
    int end = begin + kBlockIds < vocab ? begin + kBlockIds : vocab;
    float top = -kInfinity;
    for (int id = begin; id < end; ++id) {
      float z = logits[id];
      if (!(z < kInfinity)) valid = false;  // NaN or +inf
      if (is_allowed(mask, id) && z > top) top = z;
    }
    if (block_max != nullptr) block_max[begin / kBlockIds] = top;
    if (top > best) best = top;
  }
  *is_valid = valid;
  return best;
}

int first_equal(const float* logits, const uint32_t* mask, int vocab, float value) {
  for (int id = 0; id < vocab; ++id)
    if (logits[id] == value && is_allowed(mask, id)) return id;
  return -1;
}

DI_INLINE int gather_body(const GatherParams& p, uint64_t* total) {
  uint64_t sum = 0;
  int kept = 0;
  for (int id = 0; id < p.vocab; ++id) {
    if (!is_allowed(p.mask, id)) continue;
    float w = weight_of(p.logits[id], p.max, p.inverse_temperature);
    sum += mass_of(w);
    if (!(p.logits[id] >= p.cut)) continue;
    p.ids[kept] = id;
    p.kept_logits[kept] = p.logits[id];
    p.weights[kept++] = w;
  }
  *total = sum;
  return kept;
}

DI_INLINE uint64_t weigh_body(const GatherParams& p) {
  uint64_t sum = 0;
  for (int id = 0; id < p.vocab; ++id) {
    float w = is_allowed(p.mask, id) ? weight_of(p.logits[id], p.max, p.inverse_temperature) : 0.0f;
    p.weights[id] = w;
    sum += mass_of(w);
  }
  return sum;
}

DI_INLINE int race_body(const Race& r, const int32_t* ids, const float* weights, int count) {
  float best = kInfinity;
  int winner = -1;
  uint32_t group = ~0u;
  std::array<uint32_t, 4> words{};
  for (int i = 0; i < count; ++i) {
    if (!(weights[i] > 0.0f)) continue;
    uint32_t id = static_cast<uint32_t>(ids != nullptr ? ids[i] : i);
    if (id >> 2 != group) words = philox4x32({r.index, r.purpose, group = id >> 2, r.choice}, r.key0, r.key1);
    float time = exponential_of(uniform_of(words[id & 3])) / weights[i];
    if (time < best) best = time, winner = i;
  }
  return winner;
}

float portable_max(const float* z, const uint32_t* m, int v, float* b, bool* ok) {
  return max_body(z, m, v, b, ok);
}
int portable_gather(const GatherParams& p, uint64_t* total) {
  return gather_body(p, total);
}
uint64_t portable_weigh(const GatherParams& p) {
  return weigh_body(p);
}
int portable_race(const Race& r, const int32_t* ids, const float* w, int n) {
  return race_body(r, ids, w, n);
}

constexpr RowKernels kPortable{"portable", portable_max, first_equal, portable_gather, portable_weigh, portable_race};

#if defined(__x86_64__)
#define DI_FMA __attribute__((target("avx2,fma")))
DI_FMA float fma_max(const float* z, const uint32_t* m, int v, float* b, bool* ok) {
  return max_body(z, m, v, b, ok);
}
DI_FMA int fma_gather(const GatherParams& p, uint64_t* total) {
  return gather_body(p, total);
}
DI_FMA uint64_t fma_weigh(const GatherParams& p) {
  return weigh_body(p);
}
DI_FMA int fma_race(const Race& r, const int32_t* ids, const float* w, int n) {
  return race_body(r, ids, w, n);
}

constexpr RowKernels kFma{"fma", fma_max, first_equal, fma_gather, fma_weigh, fma_race};

const RowKernels& choose() {
  if (const RowKernels* wide = avx512_kernels(); wide != nullptr) return *wide;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kFma : kPortable;
}
#else
const RowKernels& choose() {
  return kPortable;
}
#endif

}  // namespace

const RowKernels& portable_kernels() {
  return kPortable;
}

const RowKernels& row_kernels() {
  static const RowKernels& chosen = choose();
  return chosen;
}

}  // namespace deepinfer::sampling
