// Who owns what: the degrees of parallelism, the shards that follow from them, and the device of every part.
//
//   tp      ranks that share each layer: every product is cut by output rows and followed by an all-gather. No sum is
//           split, so any number of ranks gives the bits of one.
//   ep      ranks among which the routed experts are divided, by contiguous ids; outputs are exchanged one by one and
//           added in ascending id.
//   engram  ranks among which the Engram tables are divided by rows; 1: every rank reads the host's one mapping.
//   dp, cp  replicas of the engine, and ranks that share one sequence's prefill.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "parallel/shard.h"
#include "weights/config.h"

namespace deepinfer::parallel {

struct ParallelPlan {
  int tp = 1, dp = 1, cp = 1, ep = 1, engram = 1;

  // `n` ranks of one replica that share everything.
  static ParallelPlan tensor(int n) { return {.tp = n, .ep = n, .engram = n}; }
  int ranks_per_replica() const { return tp * cp; }
  std::string description() const;  // "tp 2, ep 2"
};

// kInvalid or kUnsupported with the degree, its value and what is allowed.
Result<void> validate(const ParallelPlan& plan, const ModelConfig& config);

// The shards of one rank. `*_bounds` have tp + 1 entries.
struct Shards {
  int rank = 0, num_ranks = 1;
  Range groups, heads;              // of the output projection, and the query heads that feed them
  Range group_columns;              // rows of wo_a: groups x o_lora_rank
  Range hidden;                     // output rows of wo_b and of the shared w2
  Range shared_width;               // rows of the shared w1 and w3
  Range vocab;                      // rows of embed, head and the Markov matrices
  Range experts, draft_experts;     // logical ids
  Range engram_rows_out;            // output rows of engram.wkv
  Range main_proj;                  // output rows of the draft's main_proj
  std::vector<Range> engram_table;  // rows, one a layer
  std::vector<int64_t> group_column_bounds, hidden_bounds, shared_width_bounds, vocab_bounds, engram_bounds;

  static Shards make(const ModelConfig& config, const ParallelPlan& plan, int rank);
};

// A device by its index in the list the process opened; 0 is the CPU of the rank.
enum class DeviceId : int32_t { kCpu = 0 };

// What is placed as a unit.
enum class PartKind : uint8_t { kEmbedding, kAttention, kExpert, kSharedExpert, kEngramTable, kEngram, kHead };

// (layer, kind, expert) -> device. Rules are tried from the last added to the first; without a match the default holds.
class Placement {
 public:
  explicit Placement(DeviceId fallback = DeviceId::kCpu) : fallback_(fallback) {}

  // Layers and experts of the rule as half-open ranges of ids (draft stage s is layer num_hidden_layers + s).
  void add(PartKind kind, Range layers, Range experts, DeviceId device);
  DeviceId device_of(int layer, PartKind kind, int expert = 0) const;
  bool is_uniform() const;  // everything on the default device

 private:
  struct Rule {
    PartKind kind;
    Range layers, experts;
    DeviceId device;
  };
  DeviceId fallback_;
  std::vector<Rule> rules_;
};

}  // namespace deepinfer::parallel
