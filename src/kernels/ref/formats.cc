#include "kernels/ref/formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace deepinfer::kernels::ref {
namespace {

constexpr float kActFloor = 1e-4f;            // of a group's maximum, act and fp8()
constexpr float kFp4e8Floor = 6 * 0x1p-126f;  // smallest normal scale
constexpr float kFp4e4Floor = 6 * 0x1p-9f;    // smallest e4m3 scale

// e4m3_to_float of every code: decoding weights is most of a small step, and must not be a call an element.
const std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_float(static_cast<uint8_t>(code));
  return values;
}();

// Largest magnitude; a NaN is skipped here and stays visible in its own element.
float group_max(const float* x, int n, float floor) {
  float top = floor;
  for (int i = 0; i < n; ++i) top = std::max(top, std::fabs(x[i]));
  return top;
}

uint8_t act_scale(const float* x) {
  return ue8m0_ceil(group_max(x, 32, kActFloor), kInverseE4M3Max);
}
uint8_t fp4e8_scale(const float* x) {
  return ue8m0_ceil(group_max(x, 32, kFp4e8Floor), kInverseE2M1Max);
}
uint8_t fp4e4_scale(const float* x) {
  return float_to_e4m3(group_max(x, 16, kFp4e4Floor) / kE2M1Max);
}

uint8_t encode_pair(const float* x, float scale) {
  return static_cast<uint8_t>(float_to_e2m1(x[0] / scale) | float_to_e2m1(x[1] / scale) << 4);
}
void decode_pair(uint8_t pair, float scale, float* x) {
  x[0] = e2m1_to_float(pair & 15) * scale;
  x[1] = e2m1_to_float(pair >> 4) * scale;
}

// Where the parts of one compressed entry lie.
struct Place {
  std::byte* block;
  int64_t entry;
};
Place place_of(std::byte* base, int64_t block_bytes, const GlobalCache& cache, const int32_t* block_table,
               int64_t group) {
  const int64_t per_block = cache.entries_per_block();
  return {base + block_table[group / per_block] * block_bytes, group % per_block};
}
std::byte* entry_record(const GlobalCache& cache, const int32_t* block_table, int64_t group) {
  const Place at = place_of(cache.main, cache.main_block_bytes, cache, block_table, group);
  return at.block + at.entry * entry_record_bytes(cache.format, cache.head_dim);
}
struct IndexRecord {
  uint8_t* codes;
  uint8_t* scales;
  float* floats;
};
IndexRecord index_record(const GlobalCache& cache, const int32_t* block_table, int64_t group) {
  const Place at = place_of(cache.index, cache.index_block_bytes, cache, block_table, group);
  uint8_t* block = reinterpret_cast<uint8_t*>(at.block);
  const int64_t code_bytes = cache.index_dim / 2, scale_bytes = cache.index_dim / 32;
  return {block + at.entry * code_bytes, block + cache.entries_per_block() * code_bytes + at.entry * scale_bytes,
          reinterpret_cast<float*>(at.block) + at.entry * cache.index_dim};
}

}  // namespace

void decode_row(const Weight& weight, int64_t row, float* out) {
  const int64_t cols = weight.cols;
  const uint8_t* scales = weight.scales;
  switch (weight.kind) {
    case Weight::Kind::kF32:
      std::copy_n(static_cast<const float*>(weight.codes) + row * cols, cols, out);
      return;
    case Weight::Kind::kBF16: {
      const bf16* codes = static_cast<const bf16*>(weight.codes) + row * cols;
      for (int64_t k = 0; k < cols; ++k) out[k] = to_float(codes[k]);
      return;
    }
    case Weight::Kind::kFp8:
    case Weight::Kind::kFp8Row: {
      scales += (weight.kind == Weight::Kind::kFp8 ? row / 32 : row) * (cols / 32);
      const uint8_t* codes = static_cast<const uint8_t*>(weight.codes) + row * cols;
      for (int64_t g = 0; g < cols / 32; ++g) {
        const float scale = ue8m0_to_float(scales[g]);
        for (int64_t k = 32 * g; k < 32 * g + 32; ++k) out[k] = kE4M3Values[codes[k]] * scale;
      }
      return;
    }
    case Weight::Kind::kFp4: {
      scales += row * (cols / 32);
      const uint8_t* codes = static_cast<const uint8_t*>(weight.codes) + row * (cols / 2);
      for (int64_t k = 0; k < cols; k += 2) decode_pair(codes[k / 2], ue8m0_to_float(scales[k / 32]), out + k);
      return;
    }
    case Weight::Kind::kNone:
      break;
  }
  DI_CHECK(false, "a weight of kind none has no rows");
}

void round_act(float* x, int64_t n) {
  for (int64_t g = 0; g < n; g += 32) {
    const float scale = ue8m0_to_float(act_scale(x + g));
    for (int64_t i = g; i < g + 32; ++i) x[i] = e4m3_to_float(float_to_e4m3(x[i] / scale)) * scale;
  }
}

void round_fp4e8(float* x, int64_t n) {
  for (int64_t g = 0; g < n; g += 32) {
    const float scale = ue8m0_to_float(fp4e8_scale(x + g));
    for (int64_t i = g; i < g + 32; ++i) x[i] = e2m1_to_float(float_to_e2m1(x[i] / scale)) * scale;
  }
}

void encode_window(RecordFormat format, const float* x, int head_dim, std::byte* record) {
  if (format == RecordFormat::kF32) {
    std::memcpy(record, x, static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  uint8_t* codes = reinterpret_cast<uint8_t*>(record);
  for (int g = 0; g < head_dim / 32; ++g) {
    const uint8_t scale = codes[head_dim + g] = act_scale(x + 32 * g);
    for (int i = 32 * g; i < 32 * g + 32; ++i) codes[i] = float_to_e4m3(x[i] / ue8m0_to_float(scale));
  }
}

void decode_window(RecordFormat format, const std::byte* record, int head_dim, float* x) {
  if (format == RecordFormat::kF32) {
    std::memcpy(x, record, static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(record);
  for (int i = 0; i < head_dim; ++i) x[i] = kE4M3Values[codes[i]] * ue8m0_to_float(codes[head_dim + i / 32]);
}

void encode_entry(const GlobalCache& cache, const int32_t* block_table, int64_t group, const float* x) {
  std::byte* record = entry_record(cache, block_table, group);
  const int dim = cache.head_dim;
  if (cache.format == RecordFormat::kF32) {
    std::memcpy(record, x, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  uint8_t* codes = reinterpret_cast<uint8_t*>(record);
  for (int g = 0; g < dim / 16; ++g) {
    const uint8_t scale = codes[dim / 2 + g] = fp4e4_scale(x + 16 * g);
    for (int i = 16 * g; i < 16 * g + 16; i += 2) codes[i / 2] = encode_pair(x + i, e4m3_to_float(scale));
  }
}

void decode_entry(const GlobalCache& cache, const int32_t* block_table, int64_t group, float* x) {
  const std::byte* record = entry_record(cache, block_table, group);
  const int dim = cache.head_dim;
  if (cache.format == RecordFormat::kF32) {
    std::memcpy(x, record, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(record);
  for (int i = 0; i < dim; i += 2) decode_pair(codes[i / 2], e4m3_to_float(codes[dim / 2 + i / 16]), x + i);
}

void encode_index_key(const GlobalCache& cache, const int32_t* block_table, int64_t group, const float* x) {
  const IndexRecord record = index_record(cache, block_table, group);
  const int dim = cache.index_dim;
  if (cache.format == RecordFormat::kF32) {
    std::memcpy(record.floats, x, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  for (int g = 0; g < dim / 32; ++g) {
    const uint8_t scale = record.scales[g] = fp4e8_scale(x + 32 * g);
    for (int i = 32 * g; i < 32 * g + 32; i += 2) record.codes[i / 2] = encode_pair(x + i, ue8m0_to_float(scale));
  }
}

void decode_index_key(const GlobalCache& cache, const int32_t* block_table, int64_t group, float* x) {
  const IndexRecord record = index_record(cache, block_table, group);
  const int dim = cache.index_dim;
  if (cache.format == RecordFormat::kF32) {
    std::memcpy(x, record.floats, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  for (int i = 0; i < dim; i += 2) decode_pair(record.codes[i / 2], ue8m0_to_float(record.scales[i / 32]), x + i);
}

}  // namespace deepinfer::kernels::ref
