// Scratch of the operations, and how much of it each needs.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/math.h"
#include "kernels/cpu/kernel_table.h"

namespace deepinfer::kernels::cpu {
namespace {

int64_t aligned(int64_t bytes) {
  return round_up(bytes, kScratchAlign);
}

constexpr std::array<uint16_t, 128> make_fp8_magnitudes() {
  std::array<uint16_t, 128> t{};
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    // 64 |v| = (8 + mantissa) 2^(exponent - 4), or mantissa 2^-3 below the smallest exponent
    const int value = exponent == 0 ? mantissa << 1 : (8 + mantissa) << exponent;  // times 16
    const int whole = value >> 4, rest = value & 15;
    t[static_cast<size_t>(code)] = static_cast<uint16_t>(whole + (rest > 8 || (rest == 8 && whole % 2 == 1)));
  }
  return t;  // 127 is NaN, which no released weight holds
}
constexpr std::array<uint16_t, 128> kFp8Magnitudes = make_fp8_magnitudes();
static_assert(kFp8Magnitudes[126] == 28672);

}  // namespace

const uint16_t* fp8_magnitudes() {
  return kFp8Magnitudes.data();
}

void rope_angles(int64_t pos, const float* freq, int64_t pairs, float* cos, float* sin) {
  for (int64_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<float>(pos) * freq[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
}

Scratch::Scratch(const Context& context) : next_(context.scratch), end_(context.scratch + context.scratch_bytes) {}

void* Scratch::take(int64_t bytes) {
  std::byte* at = next_;
  next_ += aligned(bytes);
  DI_CHECK(next_ <= end_, "workspace too small by {} bytes: plan it with workspace_bytes()", next_ - end_);
  return at;
}
int64_t Scratch::left() const {
  return end_ - next_;
}

int64_t input_scratch_bytes(int64_t rows, int64_t cols) {
  const int64_t groups = ceil_div(cols, int64_t{32});
  // fp32 copy, int16 with scales, int8 with scales and offsets
  return aligned(rows * groups * 128) + aligned(rows * groups * 64) + aligned(rows * groups * 32) +
         3 * aligned(rows * groups * 4);
}

int64_t moe_scratch_bytes(const Ops::WorkspaceShape& s) {
  const int64_t slots = s.rows * (s.experts_per_token + 1);
  return 2 * aligned(slots * 4) + aligned((s.experts + 2) * 4) + aligned((s.experts + 1) * 32) +
         input_scratch_bytes(s.rows, s.hidden) + input_scratch_bytes(slots, s.expert_width);
}

// 8 streams at most; the operation takes fewer rows at a time when this is less than all of them.
int64_t mhc_scratch_bytes(const Ops::WorkspaceShape& s) {
  return aligned(std::min<int64_t>(s.rows, 256) * ceil_div(s.hidden, int64_t{512}) * (8 * 10 + 2) * 4) + 4096;
}

int64_t select_scratch_bytes(const Ops::WorkspaceShape& s) {
  const int64_t groups = ceil_div(s.index_dim, int64_t{32});
  // scores, block maxima, queries
  const int64_t row = (s.max_positions + 32) * 8 + 256 + s.index_heads * (32 * groups + 8 * groups + 4) + 1024;
  constexpr int64_t kEnough = int64_t{16} << 20;  // more rows at a time make fewer fork-joins
  const int64_t rows = std::clamp<int64_t>(kEnough / row, 2 * s.threads, std::max<int64_t>(s.rows, 2 * s.threads));
  return rows * row + 8192;
}

namespace {
constexpr int64_t kSegmentFloats = 80 << 10 >> 2;  // beside the unit's buffers in a second-level cache of 512 KiB
constexpr int64_t kUnitFloats = 256 << 10 >> 2;
}  // namespace

AttentionPlan plan_attention(int64_t heads, int64_t dim, int64_t keys_of_row) {
  AttentionPlan plan{.heads = heads, .dim = dim, .rows = 1, .segment_keys = 16, .score_stride = 0};
  // A window of 128 and the rows of a unit fit one segment where heads are narrow.
  plan.segment_keys = std::clamp<int64_t>(round_down(kSegmentFloats / dim, int64_t{16}), 16, 128 + 2 * plan.kMaxRows);
  plan.score_stride = round_up(keys_of_row, int64_t{16}) + 16;
  plan.rows = std::clamp<int64_t>(kUnitFloats / std::max<int64_t>(1, heads * plan.head_floats()), 1, plan.kMaxRows);
  return plan;
}
int64_t attention_floats(const AttentionPlan& plan) {
  return round_up(plan.key_floats() + std::max(kUnitFloats, plan.heads * plan.head_floats()), int64_t{16});
}
int64_t attention_scratch_bytes(const Ops::WorkspaceShape& s) {
  return s.threads * attention_floats(plan_attention(s.heads, s.head_dim, s.attention_keys)) * 4 + kScratchAlign;
}

}  // namespace deepinfer::kernels::cpu
