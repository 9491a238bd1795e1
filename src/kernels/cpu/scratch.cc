// Scratch of the operations, and how much of it each needs.
#include <algorithm>
#include <array>
#include <bit>
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
// Together they fit a second-level cache of 1 MiB.
constexpr int64_t kWindowFloats = 80 << 10 >> 2;
constexpr int64_t kEntryFloats = 256 << 10 >> 2;
constexpr int64_t kUnitFloats = 256 << 10 >> 2;
}  // namespace

AttentionPlan plan_attention(int64_t heads, int64_t dim, int64_t keys_of_row) {
  constexpr int64_t kVector = 16, kGroup = AttentionPlan::kGroupHeads;
  AttentionPlan plan{};
  // A window of 128 and the rows of a unit fit one segment where heads are narrow.
  plan.window_keys = std::clamp<int64_t>(round_down(kWindowFloats / dim, kVector), kVector, 128 + 2 * plan.kMaxRows);
  plan.entry_slots = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max(kVector, kEntryFloats / dim))));
  plan.score_keys = round_up(keys_of_row, int64_t{4}) + 2 * plan.kSpareKeys;
  const int64_t groups = ceil_div(heads, kGroup), query_floats = kGroup * dim, score_floats = kGroup * plan.score_keys;
  const int64_t row_floats = groups * (query_floats + score_floats + 2 * kGroup);
  plan.rows = std::clamp<int64_t>(kUnitFloats / row_floats, 1, plan.kMaxRows);

  auto place = [&](int64_t floats) {
    const int64_t at = plan.floats;
    plan.floats += round_up(floats, kVector);
    return at;
  };
  plan.run_of_slots_at = place(1);
  plan.window_at = place(plan.window_keys * dim);
  plan.window_keys_at = place(plan.window_keys * 2);
  plan.entries_at = place(plan.entry_slots * dim);
  plan.entry_of_slot_at = place(plan.entry_slots);
  plan.entry_keys_at = place(plan.entry_slots * 2);
  plan.queries_at = place(std::max(kUnitFloats, row_floats));
  plan.scores_at = plan.queries_at + plan.rows * groups * query_floats;
  plan.inverse_sums_at = plan.scores_at + plan.rows * groups * score_floats;
  return plan;
}
int64_t attention_scratch_bytes(const Ops::WorkspaceShape& s) {
  return s.threads * plan_attention(s.heads, s.head_dim, s.attention_keys).floats * 4 + kScratchAlign;
}

}  // namespace deepinfer::kernels::cpu
