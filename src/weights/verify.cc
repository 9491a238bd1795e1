#include "weights/verify.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "base/math.h"

namespace deepinfer::weights {
namespace {

// Scales read at a time by one thread.
constexpr int64_t kChunkBytes = 4 << 20;

struct Chunk {
  const WeightSpec* spec;
  int64_t begin, end;  // scale rows
};

// From the published file (model.md 2): four codes and the scale byte in front of two tensors.
struct Published {
  const char* name;
  std::array<uint8_t, 4> codes;
  uint8_t scale;
};
constexpr Published kPublished[] = {{"layers.0.attn.wkv.weight", {0xd8, 0x71, 0xf2, 0x79}, 0x73},
                                    {"layers.0.ffn.experts.0.w1.weight", {0xa0, 0xa8, 0xec, 0x4a}, 0x78}};
constexpr int64_t kPublishedBytes = 510'286'023'000;

Result<KnownBytes> compare_published(const Checkpoint& checkpoint) {
  if (totals(checkpoint.specs()).num_bytes != kPublishedBytes) return KnownBytes::kNotApplicable;
  for (const Published& p : kPublished) {
    DI_TRY(WeightView view, checkpoint.map(p.name));
    if (std::memcmp(view.codes, p.codes.data(), p.codes.size()) != 0 || view.scales[0] != p.scale)
      return KnownBytes::kDiffer;
  }
  return KnownBytes::kMatch;
}

}  // namespace

int64_t find_nan_scale(std::span<const uint8_t> scales) {
  const void* hit = scales.empty() ? nullptr : std::memchr(scales.data(), 255, scales.size());
  return hit == nullptr ? -1 : static_cast<const uint8_t*>(hit) - scales.data();
}

Result<Verification> verify(const Checkpoint& checkpoint, ThreadPool& pool) {
  Verification result;
  std::vector<Chunk> chunks;
  for (const WeightSpec& s : checkpoint.specs()) {
    if (!s.is_quantised()) continue;
    ++result.num_scale_tensors;
    result.num_scale_bytes += s.scale_bytes();
    const int64_t step = std::max<int64_t>(1, kChunkBytes / s.scale_cols());
    for (int64_t r = 0; r < s.scale_rows(); r += step) chunks.push_back({&s, r, std::min(r + step, s.scale_rows())});
  }
  std::mutex mutex;  // guards `result` and `first_error`
  Result<void> first_error;
  pool.each(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
    const Chunk& c = chunks[static_cast<size_t>(i)];
    std::vector<uint8_t> scales(static_cast<size_t>((c.end - c.begin) * c.spec->scale_cols()));
    Result<void> read = checkpoint.read_scales(c.spec->name, c.begin, c.end, scales);
    if (int64_t at = find_nan_scale(scales); read && at >= 0) {
      read =
          fail(Code::kCorrupt, "tensor {} has scale byte 255 (not a number) at row {}, column {}; allowed are 0..254",
               c.spec->scale_name(), c.begin + at / c.spec->scale_cols(), at % c.spec->scale_cols());
    }
    const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
    std::lock_guard lock(mutex);
    if (!read && first_error) first_error = std::move(read);
    if (scales.empty()) return;
    result.min_scale = std::min<int>(result.min_scale, *low);
    result.max_scale = std::max<int>(result.max_scale, *high);
  });
  if (!first_error) return tl::unexpected(first_error.error());
  DI_TRY(result.known_bytes, compare_published(checkpoint));
  return result;
}

}  // namespace deepinfer::weights
