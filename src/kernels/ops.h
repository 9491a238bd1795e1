// The device boundary: every piece of arithmetic of the model, as functions on views and a stream.
//
// Implementations: kernels/ref (scalar, obviously right), kernels/cpu (SIMD, chosen at run time), kernels/cuda.
// Contract of every function:
//   - stream first; allocates nothing, never waits for the device; scratch comes from the caller's Workspace
//   - a row of the result depends on that row's inputs only, never on the other rows, their number, the thread count or
//     the cut into chunks: equal inputs give equal bits (batch invariance is the normal state)
//   - activations are F32 or BF16 as activation_dtype() says. Under `vendor` every value marked "bf16" below is rounded
//   to
//     bf16 even where it is stored in F32; under fp32 / qat it is not; under `fast` the backend may
//   - views are row-major; shapes in comments are [rows, columns] with leading axes folded into rows or columns
//
// Letters: T rows of the batch, d hidden size, m residual streams, N query heads, D head dim, R rope channels, E
// experts, K experts per token, G finished groups.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "tensor/view.h"

namespace deepinfer::kernels {

// ---- what the operations work on --------------------------------------------------------------------------------

struct Batch {
  int num_rows = 0;
  std::span<const Run> runs;            // cover rows 0 .. num_rows - 1 in order
  const int64_t* positions = nullptr;   // [T]
  const int32_t* run_of_row = nullptr;  // [T]
  const uint8_t* is_image = nullptr;    // [T], 1 inside an image span; nullptr: all text
  const Run* device_runs = nullptr;     // `runs` where a device's kernels read them; unused on a host
};

// cos and sin of the rows' positions for one set of frequencies: [T, R / 2] F32 each.
struct Rope {
  TensorView cos, sin;
};

// Scratch of a backend, sized by Ops::workspace_bytes for the largest batch.
struct Workspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// ---- parameters -------------------------------------------------------------------------------------------------

struct EmbedParams {
  const int32_t* ids = nullptr;  // [T]; -1: take the row from `given`
  TensorView given;              // [T, d] F32, or empty
  Weight table;                  // [V, d] bf16 (rows of this rank; others are left zero)
  int64_t row_begin = 0;         // first vocabulary id of `table`
  TensorView streams;            // out [T, m d]: the row repeated m times
};

// One mHC site: unfold the previous sublayer's output, compute this site's mixes, fold and normalise its input.
//   1. if y:     h[j] = post_in[j] y + sum_i comb_in[i, j] h[i]                                   (bf16)
//   2. if fn:    pre_out, post_out, comb_out = mixes(h)                                           (model.md 3.2)
//   3. if gain:  x = RMSNorm(fold(h, pre_in), gain); folded = fold(h, pre_in) if wanted           (bf16 each)
struct MhcParams {
  TensorView streams;                      // in and out [T, m d]
  TensorView y;                            // [T, d] or empty
  TensorView post_in, comb_in;             // [T, m], [T, m m] F32
  const float* fn = nullptr;               // [(2 + m) m, m d] or nullptr
  const float* base = nullptr;             // [(2 + m) m]
  const float* scale = nullptr;            // [3]
  TensorView pre_in;                       // [T, m] F32
  TensorView pre_out, post_out, comb_out;  // may alias post_in, comb_in, but pre_out not pre_in
  const bf16* gain = nullptr;              // [d] or nullptr
  TensorView x;                            // out [T, d]
  TensorView folded;                       // out [T, d] before the norm, or empty
  int m = 0, sinkhorn_iters = 0;
  float rms_eps = 0, hc_eps = 0;
};

// y = x W^T for several weights over one input. fp8 and fp4 weights see an input rounded to e4m3 in groups of 32 under
// `vendor` unless quantize_input is false (wo_a). Sums in fp32; result bf16 unless keep_f32.
struct LinearJob {
  Weight weight;
  TensorView y;  // out [T, rows]
  bool keep_f32 = false;
  bool accumulate = false;  // y += instead of y =, in fp32 (implies keep_f32)
};
struct LinearParams {
  TensorView x;  // [T, cols]
  std::span<const LinearJob> jobs;
  bool quantize_input = true;
};
// Block-diagonal product: output columns g r .. g r + r - 1 from input columns g k .. g k + k - 1; weight [groups r,
// k]. No rounding of the input.
struct GroupedLinearParams {
  TensorView x;  // [T, groups k]
  Weight weight;
  int groups = 1;
  TensorView y;  // out [T, groups r], bf16
};

struct RmsNormParams {
  TensorView x, y;  // [T, n]; y may be x
  const bf16* gain = nullptr;
  float eps = 0;
};

struct RopeParams {
  const int64_t* positions = nullptr;  // [T]
  std::span<const float> freq;         // [R / 2]
  TensorView cos, sin;                 // out [T, R / 2]; angle = fp32(position) * freq in fp32
};

// Window keys of the batch's rows: record of fp8(rot(RMSNorm(raw, gain))).
struct WindowKeyParams {
  TensorView raw;  // [T, D]
  const bf16* gain = nullptr;
  float eps = 0;
  Rope rope;
  RecordFormat format = RecordFormat::kPacked;
  std::byte* records = nullptr;  // out [T] records
};
// Stores each run's last `ring` rows at their ring places. Runs after the attention of the same layer, which still
// reads the old ones.
struct WindowStoreParams {
  const Batch* batch = nullptr;
  const std::byte* records = nullptr;  // [T]
  WindowCache cache;
};

// Pools finished groups (ratio 2: softmax over the two tokens per channel, bf16; ratio 1: a copy) and normalises them:
// latent = RMSNorm(c, gain). Then stores each run's last `ring` rows in the tail, finished groups included: positions
// may be taken back, and their groups open again.
struct PoolParams {
  const Batch* batch = nullptr;
  std::span<const GroupRun> groups;
  const int32_t* group_of_row = nullptr;  // [T] on a device: the group row that a row completes, or -1
  TensorView kv, gate;                    // [T, D]; F32 for ratio 2; gate empty for ratio 1
  TailCache tail;                         // ratio 2
  const bf16* gain = nullptr;
  float eps = 0;
  int ratio = 1;
  TensorView latent;  // out [G, D]
};
// Writes entries fp4e4(rot(latent)) and index keys fp4e8(rot(RMSNorm(key_raw, key_gain))) of the groups whose first
// position is at or above the run's write floor.
struct GlobalWriteParams {
  const Batch* batch = nullptr;
  std::span<const GroupRun> groups;
  const int32_t* group_of_row = nullptr;  // as in PoolParams
  TensorView latent;                      // [G, D]
  TensorView key_raw;                     // [G, I] = latent wk^T
  const bf16* key_gain = nullptr;
  float eps = 0;
  std::span<const float> freq;  // [R / 2], compressed frequencies
  GlobalCache cache;
};

// Index scores and selection (model.md 3.4). For each row: s_g over visible g < (pos + 1) / ratio, then
//   role kSource:  candidate blocks (newest forced in) are written, chosen = top_k over all visible entries
//   role kChooser: only entries of the row's candidate blocks take part
//   role kPlain:   all visible entries
// Equal scores: the lower index first. Results are ascending, the rest of a row is -1.
struct SelectParams {
  enum class Role : uint8_t { kPlain, kSource, kChooser };
  const Batch* batch = nullptr;
  TensorView q;             // [T, heads I] before rotation
  TensorView head_weights;  // [T, heads] before the factor
  int heads = 0;
  float head_scale = 0;  // (I heads)^-0.5
  Rope rope;
  GlobalCache cache;
  Role role = Role::kPlain;
  int top_k = 0, candidate_blocks = 0, candidate_block_size = 0;
  int64_t max_positions = 0;  // no row's position reaches it, now or when recorded work is repeated; 0: see the runs
  TensorView candidates;      // [T, candidate_blocks] I32: out for kSource, in for kChooser
  TensorView chosen;          // out [T, top_k] I32
};

// Attention over the window and the chosen entries with a sink (model.md 3.5); the query is rotated before, the result
// back after.
struct AttentionParams {
  const Batch* batch = nullptr;
  TensorView q;  // [T, N D] before rotation
  Rope rope;
  const std::byte* records = nullptr;  // window records of the batch's rows [T]
  WindowCache window;                  // earlier positions
  bool block_mask = false;  // draft block: all rows of a run see each other and the `window` positions before the run
  TensorView chosen;        // [T, top_k] I32, or empty
  GlobalCache global;       // read when chosen is not empty
  const float* sink = nullptr;  // [N]
  int heads = 0, head_dim = 0;
  float scale = 0;  // D^-0.5
  TensorView out;   // [T, N D]
};

// weights = s[ids] / (sum + 1e-20) * scale; with top_k == 1 they are not divided by their sum.
struct RouteParams {
  TensorView logits;  // [T, E] F32
  const float* bias = nullptr;
  const float* bias_image = nullptr;  // for rows with is_image
  const uint8_t* is_image = nullptr;  // [T] or nullptr
  int top_k = 0;
  float gate_temp = 1, scale = 1;
  TensorView ids;      // out [T, K] I32, ascending expert id
  TensorView weights;  // out [T, K] F32, in the order of ids
};

// z = sum over chosen experts, ascending id, of expert(x; w) + shared(x; 1)   (fp32 sum, each expert's output bf16,
// result bf16)
struct MoeParams {
  TensorView x;                                   // [T, d]
  TensorView ids, weights;                        // from route
  std::span<const ExpertWeights> experts;         // this rank's
  const ExpertWeights* device_experts = nullptr;  // the same where a device's kernels read them; unused on a host
  int expert_begin = 0;                           // logical id of experts[0]
  const ExpertWeights* shared = nullptr;          // nullptr: the caller adds it
  float limit = 0;                                // swiglu clamp, <= 0: none
  TensorView z;                                   // out [T, d]; used when slots is empty
  TensorView slots;  // out [T, K d] or empty: each chosen expert's output on its own, 0 for experts of other ranks
};
// z = (((0 + slot_0) + slot_1) + ...) + shared, fp32 then bf16: the sum of MoeParams, after an exchange between ranks.
struct CombineParams {
  TensorView slots;   // [T, K d]
  TensorView shared;  // [T, d]
  int top_k = 0;
  TensorView z;
};
// a = silu(min(gate, limit)) * clamp(up, -limit, limit), bf16 (the shared expert when it is cut between ranks)
struct SwigluParams {
  TensorView gate, up, a;
  float limit = 0;
};

struct EngramGatherParams {
  TensorView rows;  // [T, n] I64 table rows
  Weight table;     // kFp8Row [rows, dim]: rows row_begin .. of the table (others are left zero)
  int64_t row_begin = 0;
  TensorView out;  // [T, n dim], bf16
};
struct EngramGateParams {
  TensorView streams;              // in and out [T, m d]
  TensorView kv;                   // [T, (m + 1) d]
  const bf16* q_weight = nullptr;  // [m, d]
  const bf16* k_weight = nullptr;
  const uint8_t* is_image = nullptr;  // rows left alone
  int m = 0;
  float eps = 0;
};

struct StreamMeanParams {
  TensorView streams;  // [T, m d]
  int m = 0;
  TensorView mean;  // out [T, d], bf16
};
struct GatherRowsParams {
  Weight table;  // kBF16 [V, n] (rows of this rank; others are left zero)
  int64_t row_begin = 0;
  const int32_t* ids = nullptr;  // [T]
  TensorView out;                // [T, n]
};

// ---- the interface ----------------------------------------------------------------------------------------------

class Ops {
 public:
  virtual ~Ops() = default;
  virtual Numerics numerics() const = 0;
  virtual DType activation_dtype() const = 0;
  virtual std::string description() const = 0;  // backend and chosen instruction set, for the start-up print

  // Scratch for batches of up to `rows` rows; longest row, head counts etc. as given.
  struct WorkspaceShape {
    int64_t rows = 0, max_cols = 0;  // widest linear input
    int64_t max_positions = 0;       // context length
    int64_t heads = 0, head_dim = 0, index_heads = 0, index_dim = 0;
    int64_t attention_keys = 0;  // most keys of a row: window, draft block and chosen entries
    int64_t hidden = 0, expert_width = 0, experts = 0, experts_per_token = 0;
    int threads = 1;
  };
  virtual int64_t workspace_bytes(const WorkspaceShape& shape) const = 0;
  virtual void set_workspace(Workspace workspace) = 0;

  virtual void prefetch(Stream& stream, const Weight& weight) = 0;  // a hint: this weight is read next

  virtual void embed(Stream& stream, const EmbedParams& p) = 0;
  virtual void mhc(Stream& stream, const MhcParams& p) = 0;
  virtual void linear(Stream& stream, const LinearParams& p) = 0;
  virtual void grouped_linear(Stream& stream, const GroupedLinearParams& p) = 0;
  virtual void rms_norm(Stream& stream, const RmsNormParams& p) = 0;
  virtual void rope(Stream& stream, const RopeParams& p) = 0;
  virtual void window_keys(Stream& stream, const WindowKeyParams& p) = 0;
  // Both, of which none reads what the other writes. Backends with dear launches do them in one.
  virtual void norm_and_window_keys(Stream& stream, const RmsNormParams& norm, const WindowKeyParams& keys) {
    rms_norm(stream, norm);
    window_keys(stream, keys);
  }
  virtual void window_store(Stream& stream, const WindowStoreParams& p) = 0;
  virtual void pool(Stream& stream, const PoolParams& p) = 0;
  virtual void global_write(Stream& stream, const GlobalWriteParams& p) = 0;
  virtual void select(Stream& stream, const SelectParams& p) = 0;
  virtual void attention(Stream& stream, const AttentionParams& p) = 0;
  virtual void route(Stream& stream, const RouteParams& p) = 0;
  virtual void moe(Stream& stream, const MoeParams& p) = 0;
  // Route, then moe over its choice; likewise.
  virtual void route_and_moe(Stream& stream, const RouteParams& choice, const MoeParams& p) {
    route(stream, choice);
    moe(stream, p);
  }
  virtual void combine(Stream& stream, const CombineParams& p) = 0;
  virtual void swiglu(Stream& stream, const SwigluParams& p) = 0;
  virtual void engram_gather(Stream& stream, const EngramGatherParams& p) = 0;
  virtual void engram_gate(Stream& stream, const EngramGateParams& p) = 0;
  virtual void stream_mean(Stream& stream, const StreamMeanParams& p) = 0;
  virtual void gather_rows(Stream& stream, const GatherRowsParams& p) = 0;
};

std::unique_ptr<Ops> make_ref_ops(Numerics numerics);   // all four numerics; `fast` equals `vendor` here
std::unique_ptr<Ops> make_cuda_ops(Numerics numerics);  // vendor and fast; only beside a device of make_cuda_device
std::unique_ptr<Ops> make_cpu_ops();                    // fast

}  // namespace deepinfer::kernels
