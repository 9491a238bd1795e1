// What every layer function of a rank uses, and the buffers that layers share.
#pragma once

#include "cache/global_pool.h"
#include "cache/state_pool.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "kernels/ops.h"
#include "model/rows.h"
#include "parallel/plan.h"
#include "weights/config.h"

namespace deepinfer::model {

// The rank's parts. All of them outlive the model; one thread drives them.
struct RankParts {
  Device* device = nullptr;
  Stream* stream = nullptr;
  kernels::Ops* ops = nullptr;
  comm::Communicator* comm = nullptr;
  cache::GlobalPool* global = nullptr;
  cache::StatePool* states = nullptr;
  int num_threads = 1;  // of the stream
};

struct Context {
  const ModelConfig& config;
  const parallel::Shards& shards;
  RankParts parts;

  kernels::Ops& ops() const { return *parts.ops; }
  Stream& stream() const { return *parts.stream; }
  bool is_sharded() const { return shards.num_ranks > 1; }
  float eps() const { return static_cast<float>(config.rms_norm_eps); }

  // y = x W^T; nothing for a rank without rows of W.
  void linear(const TensorView& x, const kernels::Weight& weight, const TensorView& y, bool keep_f32 = false) const {
    kernels::LinearJob job{.weight = weight, .y = y, .keep_f32 = keep_f32};
    linear(x, std::span(&job, 1));
  }
  void linear(const TensorView& x, std::span<const kernels::LinearJob> jobs) const {
    if (!jobs.empty() && !jobs.front().weight.empty()) ops().linear(stream(), {.x = x, .jobs = jobs});
  }
  // y [T, n]: this rank's columns of y from its rows of W, then everybody's.
  void sharded_linear(const TensorView& x, const kernels::Weight& weight, const TensorView& y, parallel::Range columns,
                      std::span<const int64_t> bounds, bool keep_f32 = false) const {
    linear(x, weight, y.col_range(columns.begin, columns.size()), keep_f32);
    parts.comm->all_gather(stream(), {y, bounds});
  }
};

// How large a pass may get.
struct Limits {
  int64_t max_rows = 0;       // of a forward batch
  int max_sequences = 0;      // of a forward or draft batch
  int64_t max_positions = 0;  // context length
  int ring = 0;               // positions of a window ring (cache::StatePlan); 0: the default of the configuration
};

// Buffers of one pass, [rows, ...] each; `rows` is the most that a forward or draft batch brings. Sublayers overlap in
// memory: what attention, experts and Engram use inside is dead outside.
struct Scratch {
  TensorView x;           // [T, d] normed input of a sublayer
  TensorView y;           // [T, d] its output, until the next site takes it
  TensorView chosen;      // [T, top_k] I32, handed down from index sources
  TensorView candidates;  // [T, blocks] I32, handed down from the candidate source

  struct Attention {
    TensorView q_latent, kv_raw;      // [T, q rank], [T, D]
    std::byte* records = nullptr;     // [T] window records
    TensorView q, out;                // [T, heads D] of this rank
    TensorView groups;                // [T, groups x o rank]
    TensorView pool_kv, pool_gate;    // [T, D], F32 where the ratio is 2
    TensorView latent, key_raw;       // [G, D], [G, I]
    TensorView index_q, index_heads;  // [T, heads I], [T, heads]
  } attention;
  struct Experts {
    TensorView logits;        // [T, E] F32
    TensorView ids, weights;  // [T, K]
    TensorView slots;         // [T, K d], sharded only, as all below
    TensorView gate, up, a;   // [T, width]
    TensorView shared;        // [T, d]
  } experts;
  struct Engram {
    TensorView rows;  // [T, columns x dim]
    TensorView kv;    // [T, (m + 1) d]
  } engram;

  static Scratch plan(Arena& arena, const ModelConfig& config, const parallel::Shards& shards, DType activation,
                      kernels::RecordFormat format, int64_t rows);
};

// The first `rows` rows of a planned view.
inline TensorView head_rows(const TensorView& view, int64_t rows) {
  return view.row_range(0, rows);
}

}  // namespace deepinfer::model
