// All ranks of a replica inside one process: each has its own stream, kernels, caches and model, and a thread that
// drives them. One rank runs on the caller's thread.
//
//   run(f) calls f(rank) for all ranks at once and returns when all are done; within f, ranks meet in their
//   collectives, so every rank must make the same calls.
//
// Owned by the thread that calls run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/model.h"

namespace deepinfer::model {

struct Rank {
  explicit Rank(weights::Checkpoint files) : checkpoint(std::move(files)) {}

  int id = 0;
  weights::Checkpoint checkpoint;  // counts the bytes that this rank maps
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<comm::Communicator> comm;
  cache::GlobalPool global;
  cache::StatePool states;
  std::unique_ptr<Model> model;
};

struct RanksOptions {
  parallel::ParallelPlan plan;
  std::function<std::unique_ptr<kernels::Ops>()> make_ops;
  std::function<Result<std::unique_ptr<Device>>()> make_device;  // empty: the CPU
  int threads = 0;                                               // of all ranks together; 0: all available
  int64_t num_blocks = 0;                                        // of each rank's global pool, block 0 included
  int num_slots = 1;
  int backtracking = -1;  // positions the window rings can take back; -1: the draft block + 1
  ModelOptions model;
};

class Ranks {
 public:
  static Result<std::unique_ptr<Ranks>> create(const weights::Checkpoint& checkpoint, RanksOptions options);

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  template <typename F>
  void run(F&& f) {
    drivers_->run([&](int rank) { f(*ranks_[static_cast<size_t>(rank)]); });
  }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<ThreadPool> drivers_;
};

}  // namespace deepinfer::model
