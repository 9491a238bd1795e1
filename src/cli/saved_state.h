// Sequences saved in a folder in the packed form (cache/packed.h), to go on with in another process:
//   DIR/<i>.state   private state of sequence i after its positions [0, end)
//   DIR/<i>.<b>.block   its blocks b = 0, 1, ..., the last one possibly partly filled
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/ranks.h"

namespace deepinfer {

// Identifies what wrote the state: configuration and record format.
cache::Digest state_namespace(const ModelConfig& config, kernels::RecordFormat format);

// The sequence's tokens as far as they were computed, and where its caches lie.
struct SavedSequence {
  int index = 0;
  std::span<const int32_t> ids;      // [0, end)
  std::span<const int32_t> context;  // compressed ids of the last positions
  std::span<const int32_t> blocks;
  int32_t slot = 0;
};
Result<void> save_sequence(const std::string& directory, model::Rank& rank, const SavedSequence& sequence);

struct LoadedState {
  std::string bytes;
  cache::PackedView view;  // into bytes
  std::vector<int32_t> context;
};
// Reads and checks DIR/<i>.state: kInvalid if it was written by another model or does not end inside `ids`.
Result<LoadedState> load_state(const std::string& directory, int index, const cache::Digest& name_space,
                               std::span<const int32_t> ids);
// Fills slot and blocks of one rank; kInvalid if the blocks hold other tokens than `ids`.
Result<void> restore(const std::string& directory, int index, const LoadedState& state, model::Rank& rank,
                     std::span<const int32_t> ids, std::span<const int32_t> blocks, int32_t slot);

}  // namespace deepinfer
