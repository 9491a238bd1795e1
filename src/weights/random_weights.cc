#include "weights/random_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace deepinfer::weights {
namespace {

constexpr int kScaleGroup = 32;  // columns that share a scale
constexpr int kPlainGroup = 16;  // values of a bf16 or f32 group: four hashes of four 16-bit picks

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t hash_name(std::string_view name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

// Inverse of the normal distribution function, by bisection of erfc: made once, so plain beats fast.
float normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 40; ++i) {
    double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle * M_SQRT1_2) < p ? low : high) = middle;
  }
  return static_cast<float>(low);
}

template <int N>
std::array<float, N> make_quantiles() {
  std::array<float, N> q;
  for (int i = 0; i < N / 2; ++i) {
    q[static_cast<size_t>(i)] = normal_quantile((i + 0.5) / N);
    q[static_cast<size_t>(N - 1 - i)] = -q[static_cast<size_t>(i)];
  }
  return q;
}

const std::array<float, 256>& coarse_quantiles() {
  static const auto table = make_quantiles<256>();
  return table;
}

const std::array<float, 65536>& fine_quantiles() {
  static const auto table = make_quantiles<65536>();
  return table;
}

}  // namespace

Distribution random_distribution(const WeightSpec& spec) {
  const std::string_view n = spec.name;
  auto ends = [&](std::string_view tail) { return n.ends_with(tail); };
  const float column_std = 1 / std::sqrt(static_cast<float>(spec.cols));
  if (spec.part == Part::kVision) {
    if (ends("norm.weight") || ends("norm1.weight") || ends("norm2.weight")) return {.mean = 1, .std = 0.2f};
    return {.std = spec.rank == 2 ? column_std : 0.1f};
  }
  if (ends("norm.weight") || ends("q_weight") || ends("k_weight")) return {.mean = 1, .std = 0.2f};
  if (ends("_base")) return {.std = 0.7f};
  if (ends("_scale")) return {.mean = 0.5f, .std = 0.3f, .is_absolute = true};
  if (ends("gate.bias") || ends("gate.bias_vl")) return {.std = 0.15f};
  if (ends("attn_sink") || ends("embed.weight")) return {};
  if (n.starts_with("head")) return {.std = 2 * column_std};
  // Sublayers that add little, so that rounding noise does not take over: a random network amplifies flipped choices.
  if (ends("wo_b.weight") || ends("w2.weight")) return {.std = 0.25f * column_std};
  return {.std = column_std};
}

RandomTensor::RandomTensor(const WeightSpec& spec, uint64_t seed)
    : spec_(spec), distribution_(random_distribution(spec)), key_(mix(mix(seed) ^ hash_name(spec.name))) {
  if (!spec.is_quantised()) return;
  const auto& quantiles = coarse_quantiles();
  const bool is_fp4 = spec.kind == Kind::kFp4;
  scale_ = ue8m0_ceil(distribution_.std * quantiles.back(), is_fp4 ? kInverseE2M1Max : kInverseE4M3Max);
  for (int larger = 0; larger < 2; ++larger) {
    const float inverse = 1 / ue8m0_to_float(static_cast<uint8_t>(scale_ + larger));
    for (size_t i = 0; i < 256; ++i) {
      const float value = distribution_.std * quantiles[i] * inverse;
      code_tables_[larger][i] = is_fp4 ? float_to_e2m1(value) : float_to_e4m3(value);
    }
  }
}

bool RandomTensor::has_larger_scale(int64_t scale_index) const {
  return (mix(~key_ + static_cast<uint64_t>(scale_index) * 0x9e3779b97f4a7c15) & 3) == 0;
}

void RandomTensor::group(int64_t index, std::byte* out) const {
  uint64_t words[4];
  const uint64_t counter = key_ + static_cast<uint64_t>(index) * 4 * 0x9e3779b97f4a7c15;
  for (uint64_t i = 0; i < 4; ++i) words[i] = mix(counter + i * 0x9e3779b97f4a7c15);
  if (spec_.is_quantised()) {
    uint8_t picks[kScaleGroup];
    std::memcpy(picks, words, sizeof picks);
    int64_t scale_index = index;
    if (spec_.kind == Kind::kFp8) {
      const int64_t groups = spec_.cols / kScaleGroup;
      scale_index = index / groups / kScaleGroup * groups + index % groups;
    }
    const uint8_t* table = code_tables_[has_larger_scale(scale_index)];
    auto* bytes = reinterpret_cast<uint8_t*>(out);
    if (spec_.kind == Kind::kFp4) {
      for (int i = 0; i < kScaleGroup / 2; ++i)
        bytes[i] = static_cast<uint8_t>(table[picks[2 * i]] | table[picks[2 * i + 1]] << 4);
    } else {
      for (int i = 0; i < kScaleGroup; ++i) bytes[i] = table[picks[i]];
    }
    return;
  }
  uint16_t picks[kPlainGroup];
  std::memcpy(picks, words, sizeof picks);
  const auto& quantiles = fine_quantiles();
  float values[kPlainGroup];
  for (int i = 0; i < kPlainGroup; ++i) {
    const float g = quantiles[picks[i]];
    values[i] = distribution_.mean + distribution_.std * (distribution_.is_absolute ? std::abs(g) : g);
  }
  if (spec_.kind == Kind::kF32) {
    std::memcpy(out, values, sizeof values);
    return;
  }
  bf16 narrow[kPlainGroup];
  for (int i = 0; i < kPlainGroup; ++i) narrow[i] = to_bf16(values[i]);
  std::memcpy(out, narrow, sizeof narrow);
}

void RandomTensor::codes(int64_t offset, std::span<std::byte> out) const {
  const int64_t group_bytes = spec_.kind == Kind::kF32    ? 4 * kPlainGroup
                              : spec_.kind == Kind::kBF16 ? 2 * kPlainGroup
                              : spec_.kind == Kind::kFp4  ? kScaleGroup / 2
                                                          : kScaleGroup;
  if (out.empty()) return;
  const int64_t end = offset + static_cast<int64_t>(out.size());
  std::byte part[4 * kPlainGroup];
  for (int64_t g = offset / group_bytes; g * group_bytes < end; ++g) {
    const int64_t begin = g * group_bytes;
    if (begin >= offset && begin + group_bytes <= end) {
      group(g, out.data() + (begin - offset));
      continue;
    }
    group(g, part);
    const int64_t from = std::max(begin, offset), to = std::min(begin + group_bytes, end);
    std::memcpy(out.data() + (from - offset), part + (from - begin), static_cast<size_t>(to - from));
  }
}

void RandomTensor::scales(int64_t offset, std::span<std::byte> out) const {
  for (std::byte& b : out) b = static_cast<std::byte>(scale_of(offset++));
}

}  // namespace deepinfer::weights
