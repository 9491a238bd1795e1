// Declarations of one instruction set's functions; the including unit has defined DI_ISA (avx2, avx512).
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd.h"

namespace deepinfer::kernels::cpu {

enum class Path : uint8_t { kF32, kInt8, kInt16 };

// Rows of activations in one of the formats of input.h. For kInt8 also -12 * sum q a group: FP4 codes are stored as 12
// + twice their value, to be unsigned.
struct Input {
  Path path = Path::kF32;
  const std::byte* data = nullptr;  // row t at data + t * row_bytes
  int64_t row_bytes = 0;
  const float* scales = nullptr;  // [T, groups]
  const int32_t* offsets = nullptr;
  int64_t groups = 0;

  DI_INLINE Input from_group(int64_t g) const {
    Input part = *this;
    part.data += g * (path == Path::kInt8 ? 32 : path == Path::kInt16 ? 64 : 128);
    if (scales != nullptr) part.scales += g;
    if (offsets != nullptr) part.offsets += g;
    return part;
  }
};

// Rows of x by number: row i of a product is rows[i], or first + i.
struct Tokens {
  Input input;
  const int32_t* rows = nullptr;
  int64_t first = 0;
  int count = 0;

  DI_INLINE int64_t row(int i) const { return rows != nullptr ? rows[i] : first + i; }
};

constexpr int kPanel = 16, kBlockRows = 64, kMaxTokens = 256;
constexpr int kFewTokens = 8;  // up to here a chunk is one panel and long, above four panels and short

namespace {

DI_INLINE int64_t bytes_of_columns(Weight::Kind kind, int64_t n) {
  switch (kind) {
    case Weight::Kind::kF32:
      return 4 * n;
    case Weight::Kind::kBF16:
      return 2 * n;
    case Weight::Kind::kFp4:
      return n / 2;
    default:
      return n;
  }
}

// The codes of a row, which need not exist: for prefetching.
DI_INLINE const uint8_t* row_codes(const Weight& w, int64_t row) {
  return static_cast<const uint8_t*>(w.codes) + row * bytes_of_columns(w.kind, w.cols);
}

}  // namespace

namespace DI_ISA {

// acc[i][r] = x[tokens.row(i)] . w[first_row + r] for r < num_rows <= 64 (garbage up to the next 16), i < count <=
// kMaxTokens; rows of acc are `sums_stride` floats apart. See product.h for the order of additions. `next`: codes of
// the row that is read after these, if it is not the one behind them.
void product(const Weight& w, int64_t first_row, int64_t num_rows, const Tokens& tokens, float* acc,
             int64_t sums_stride, const uint8_t* next = nullptr);

void embed(const Context& ctx, const EmbedParams& p);
void mhc(const Context& ctx, const MhcParams& p);
void linear(const Context& ctx, const LinearParams& p);
void grouped_linear(const Context& ctx, const GroupedLinearParams& p);
void rms_norm(const Context& ctx, const RmsNormParams& p);
void window_keys(const Context& ctx, const WindowKeyParams& p);
void pool(const Context& ctx, const PoolParams& p);
void global_write(const Context& ctx, const GlobalWriteParams& p);
void select(const Context& ctx, const SelectParams& p);
void attention(const Context& ctx, const AttentionParams& p);
void route(const Context& ctx, const RouteParams& p);
void moe(const Context& ctx, const MoeParams& p);
void combine(const Context& ctx, const CombineParams& p);
void swiglu(const Context& ctx, const SwigluParams& p);
void engram_gather(const Context& ctx, const EngramGatherParams& p);
void engram_gate(const Context& ctx, const EngramGateParams& p);
void stream_mean(const Context& ctx, const StreamMeanParams& p);
void gather_rows(const Context& ctx, const GatherRowsParams& p);

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
