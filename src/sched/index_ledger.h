// The scheduler's view of the prefix index: BlockLedger over cache::PrefixIndex and its block bookkeeping.
//
// A ChainCursor carries the 16 bytes of the last block's name, and which tree node that block is.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cache/prefix_index.h"
#include "sched/block_ledger.h"

namespace deepinfer::sched {

class IndexLedger final : public BlockLedger {
 public:
  IndexLedger(int32_t num_blocks, std::string_view cluster_key, const cache::Digest& name_space,
              int32_t num_window_places = 0);

  int64_t num_blocks() const override { return blocks_.num_blocks(); }
  int64_t num_available() const override { return index_.num_available(); }
  std::optional<int32_t> take() override { return index_.take(); }
  void share(int32_t block) override { index_.share(block); }
  void give_back(int32_t block) override { index_.release(block); }
  PrefixHit match(std::span<const int32_t> tokens, const std::string& share_key, int64_t max_blocks,
                  bool exact_only) override;
  ChainCursor open_chain(const std::string& share_key) override;
  bool is_cached(const ChainCursor& cursor) const override;
  // `cursor.exact` false marks the block as replayed.
  int32_t publish(ChainCursor& cursor, std::span<const int32_t> block_tokens, int32_t block) override;

  std::optional<int32_t> take_windows() override { return index_.take_windows(); }
  void give_back_windows(int32_t place) override { index_.give_back_windows(place); }
  void store_windows(const ChainCursor& cursor, int32_t place) override;
  void retire_windows(const ChainCursor& cursor) override;

  cache::PrefixIndex& index() { return index_; }
  const cache::IndexStats& stats() const { return index_.stats(); }

 private:
  cache::BlockAllocator blocks_;
  cache::PrefixIndex index_;
};

}  // namespace deepinfer::sched
