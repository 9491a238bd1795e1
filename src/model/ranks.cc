#include "model/ranks.h"

#include <algorithm>

namespace deepinfer::model {
namespace {

Result<void> make_rank(Rank& rank, RanksOptions& options, int num_threads) {
  const ModelConfig& config = rank.checkpoint.config();
  if (options.make_device) {
    DI_TRY(rank.device, options.make_device());
  } else {
    rank.device = make_cpu_device();
  }
  rank.stream = rank.device->create_stream(num_threads);
  rank.ops = options.make_ops();
  if (!rank.device->is_host() && options.plan.tp > 1)
    return fail(Code::kUnsupported, "{} ranks: on a GPU there is one in a process", options.plan.tp);
  const kernels::RecordFormat format = record_format(rank.ops->numerics());
  DI_TRY(rank.global, cache::GlobalPool::create(*rank.device, config, format, options.num_blocks));
  const auto state_plan = cache::StatePlan::make(config, format, options.backtracking);
  DI_TRY(rank.states, cache::StatePool::create(*rank.device, state_plan, options.num_slots));
  options.model.limits.ring = state_plan.ring();
  const RankParts parts{.device = rank.device.get(),
                        .stream = rank.stream.get(),
                        .ops = rank.ops.get(),
                        .comm = rank.comm.get(),
                        .global = &rank.global,
                        .states = &rank.states,
                        .num_threads = num_threads};
  DI_TRY(rank.model, Model::create(rank.checkpoint, options.plan, rank.id, parts, options.model));
  return {};
}

}  // namespace

Result<std::unique_ptr<Ranks>> Ranks::create(const weights::Checkpoint& checkpoint, RanksOptions options) {
  DI_TRY_VOID(parallel::validate(options.plan, checkpoint.config()));
  const int num_ranks = options.plan.tp;
  const int threads = options.threads > 0 ? options.threads : available_threads();
  auto comms =
      num_ranks == 1 ? std::vector<std::unique_ptr<comm::Communicator>>() : comm::make_local_communicators(num_ranks);
  auto ranks = std::make_unique<Ranks>();
  for (int r = 0; r < num_ranks; ++r) {
    auto rank = std::make_unique<Rank>(checkpoint.for_rank());
    rank->id = r;
    rank->comm = num_ranks == 1 ? comm::make_single_communicator() : std::move(comms[static_cast<size_t>(r)]);
    DI_TRY_VOID(make_rank(*rank, options, std::max(1, threads / num_ranks)));
    ranks->ranks_.push_back(std::move(rank));
  }
  ranks->drivers_ = std::make_unique<ThreadPool>(num_ranks);
  return ranks;
}

}  // namespace deepinfer::model
