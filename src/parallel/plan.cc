#include "parallel/plan.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::parallel {
namespace {

constexpr int kMaxRanks = 64;  // of one replica: in-process ranks are NUMA nodes or devices of one host

bool contains(const Range& r, int64_t i) {
  return r.begin <= i && i < r.end;
}

}  // namespace

std::string ParallelPlan::description() const {
  std::string text = fmt::format("tp {}", tp);
  for (auto [name, degree] : {std::pair{"dp", dp}, {"cp", cp}, {"ep", ep}, {"engram", engram}}) {
    if (degree > 1) text += fmt::format(", {} {}", name, degree);
  }
  return text;
}

Result<void> validate(const ParallelPlan& plan, const ModelConfig& config) {
  if (plan.tp < 1 || plan.tp > kMaxRanks)
    return fail(Code::kInvalid, "tp {} is not between 1 and {}", plan.tp, kMaxRanks);
  if (plan.dp != 1) return fail(Code::kUnsupported, "dp {} is not built: start one engine a replica", plan.dp);
  if (plan.cp != 1) return fail(Code::kUnsupported, "cp {} is not built: only 1", plan.cp);
  if (plan.ep != plan.tp) return fail(Code::kUnsupported, "ep {} differs from tp {}", plan.ep, plan.tp);
  if (plan.engram != 1 && plan.engram != plan.tp)
    return fail(Code::kInvalid, "engram {} is neither 1 nor tp {}", plan.engram, plan.tp);
  if (plan.tp > config.vocab_size)
    return fail(Code::kInvalid, "tp {} exceeds the {} rows of the vocabulary", plan.tp, config.vocab_size);
  return {};
}

Shards Shards::make(const ModelConfig& c, const ParallelPlan& plan, int rank) {
  int n = plan.tp;
  DI_CHECK(rank >= 0 && rank < n, "rank {} of {}", rank, n);
  Shards s;
  s.rank = rank;
  s.num_ranks = n;
  // A group's rows of wo_a and its heads' rows of wq_b must end at scale borders: both widths are multiples of 32.
  s.groups = shard_range(c.o_groups, 1, n, rank);
  int64_t heads_per_group = c.num_attention_heads / c.o_groups;
  s.heads = {s.groups.begin * heads_per_group, s.groups.end * heads_per_group};
  s.group_columns = {s.groups.begin * c.o_lora_rank, s.groups.end * c.o_lora_rank};
  for (int64_t group : shard_bounds(c.o_groups, 1, n)) s.group_column_bounds.push_back(group * c.o_lora_rank);
  s.hidden = s.main_proj = shard_range(c.hidden_size, kWeightQuantum, n, rank);
  s.hidden_bounds = shard_bounds(c.hidden_size, kWeightQuantum, n);
  s.shared_width = shard_range(c.moe_intermediate_size, kWeightQuantum, n, rank);
  s.shared_width_bounds = shard_bounds(c.moe_intermediate_size, kWeightQuantum, n);
  s.vocab = shard_range(c.vocab_size, 1, n, rank);
  s.vocab_bounds = shard_bounds(c.vocab_size, 1, n);
  s.experts = shard_range(c.n_routed_experts, 1, n, rank);
  s.draft_experts = shard_range(c.dspark_n_routed_experts, 1, n, rank);
  int64_t engram_out = int64_t{c.hc_mult + 1} * c.hidden_size;
  s.engram_rows_out = shard_range(engram_out, kWeightQuantum, n, rank);
  s.engram_bounds = shard_bounds(engram_out, kWeightQuantum, n);
  for (int64_t rows : c.engram_num_embeddings)
    s.engram_table.push_back(plan.engram == 1 ? Range{0, rows} : shard_range(rows, 1, n, rank));
  return s;
}

void Placement::add(PartKind kind, Range layers, Range experts, DeviceId device) {
  rules_.push_back({kind, layers, experts, device});
}

DeviceId Placement::device_of(int layer, PartKind kind, int expert) const {
  auto rule = std::find_if(rules_.rbegin(), rules_.rend(), [&](const Rule& r) {
    return r.kind == kind && contains(r.layers, layer) && contains(r.experts, expert);
  });
  return rule == rules_.rend() ? fallback_ : rule->device;
}

bool Placement::is_uniform() const {
  return std::all_of(rules_.begin(), rules_.end(), [&](const Rule& r) { return r.device == fallback_; });
}

}  // namespace deepinfer::parallel
