// What an instruction set provides: one function an operation, and the context they all receive.
//
// Every folder kernels/cpu/<isa>/ compiles the same bodies (kernels/cpu/body/) into the namespace cpu::<isa> and
// exports one table. Code here and in the bodies' callers is compiled without the instruction set's flags.
#pragma once

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace deepinfer::kernels::cpu {

struct Context {
  ThreadPool& pool;
  std::byte* scratch = nullptr;  // 64-byte aligned
  int64_t scratch_bytes = 0;
};

// Scratch is handed out from the front and forgotten when the operation returns.
class Scratch {
 public:
  explicit Scratch(const Context& context);
  void* take(int64_t bytes);  // ends the process if the workspace is too small: workspace_bytes() was not followed
  int64_t left() const;

 private:
  std::byte* next_;
  std::byte* end_;
};

struct KernelTable {
  const char* name;
  void (*embed)(const Context&, const EmbedParams&);
  void (*mhc)(const Context&, const MhcParams&);
  void (*linear)(const Context&, const LinearParams&);
  void (*grouped_linear)(const Context&, const GroupedLinearParams&);
  void (*rms_norm)(const Context&, const RmsNormParams&);
  void (*window_keys)(const Context&, const WindowKeyParams&);
  void (*pool)(const Context&, const PoolParams&);
  void (*global_write)(const Context&, const GlobalWriteParams&);
  void (*select)(const Context&, const SelectParams&);
  void (*attention)(const Context&, const AttentionParams&);
  void (*route)(const Context&, const RouteParams&);
  void (*moe)(const Context&, const MoeParams&);
  void (*combine)(const Context&, const CombineParams&);
  void (*swiglu)(const Context&, const SwigluParams&);
  void (*engram_gather)(const Context&, const EngramGatherParams&);
  void (*engram_gate)(const Context&, const EngramGateParams&);
  void (*stream_mean)(const Context&, const StreamMeanParams&);
  void (*gather_rows)(const Context&, const GatherRowsParams&);
};

// Scratch of single operations; bodies and workspace_bytes() use the same arithmetic.
constexpr int64_t kScratchAlign = 64;
int64_t input_scratch_bytes(int64_t rows, int64_t cols);  // linear, grouped_linear: packed input
int64_t moe_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t mhc_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t select_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t attention_scratch_bytes(const Ops::WorkspaceShape& shape);

// Buffers of a thread in attention: decoded window keys and entries, then for each row of a unit and group of heads the
// queries, the scores and the inverse of their sums. Places are in floats.
struct AttentionPlan {
  static constexpr int64_t kMaxRows = 16;
  static constexpr int64_t kGroupHeads = 8;
  static constexpr int64_t kSpareKeys = 4;  // in front of a row's scores and behind them
  int64_t rows;                             // of a unit, at most
  int64_t window_keys;                      // decoded at a time
  int64_t entry_slots;                      // decoded entries, a power of two
  int64_t score_keys;                       // room for all keys of a row and the spare ones
  int64_t run_of_slots_at, window_at, window_keys_at, entries_at, entry_of_slot_at, entry_keys_at;
  int64_t queries_at, scores_at, inverse_sums_at;
  int64_t floats;  // of the whole; not less for more heads
};
AttentionPlan plan_attention(int64_t heads, int64_t dim, int64_t keys_of_row);

// The largest magnitudes of activations in the integer products of `fast`.
constexpr int kInt8Limit = 127;      // beside FP4 weights: 32 * 24 * 127 and their offset stay far below 2^31
constexpr int kInt16Limit = 2047;    // beside FP8 weights: 32 * 28672 * 2047 < 2^31
constexpr float kFp8Unit = 0x1p-6f;  // FP8 weights become multiples of this (448 / unit = 28672)

// round(|value| / kFp8Unit) of the 128 e4m3 magnitudes, ties to even; exact from 0.125 up.
const uint16_t* fp8_magnitudes();

// cos and sin of fp32(pos) * freq, as rope() computes them.
void rope_angles(int64_t pos, const float* freq, int64_t pairs, float* cos, float* sin);

const KernelTable& avx2_table();
const KernelTable& avx512_table();

}  // namespace deepinfer::kernels::cpu
