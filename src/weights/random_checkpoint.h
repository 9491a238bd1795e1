// Writes a checkpoint of random weights: config.json, shards, index. Streamed: memory stays at a few buffers a thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "weights/config.h"
#include "weights/inventory.h"

namespace deepinfer::weights {

struct RandomCheckpointOptions {
  uint64_t seed = 0;
  int64_t shard_bytes = int64_t{5} << 30;  // a shard is closed when it has reached this size
};

// `directory` is created; a checkpoint that is already there is refused with kInvalid.
Result<InventoryTotals> write_random_checkpoint(const ModelConfig& config, const std::string& directory,
                                                const RandomCheckpointOptions& options, ThreadPool& pool);

}  // namespace deepinfer::weights
