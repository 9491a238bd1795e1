// Blocks without a prefix index: a free list with reference counts.
#pragma once

#include "sched/block_ledger.h"

namespace deepinfer::sched {

class FreeListLedger final : public BlockLedger {
 public:
  explicit FreeListLedger(int64_t num_blocks) : holders_(static_cast<size_t>(num_blocks) + 1) {
    for (auto b = static_cast<int32_t>(num_blocks); b >= 1; --b) free_.push_back(b);
  }
  int64_t num_blocks() const override { return static_cast<int64_t>(holders_.size()) - 1; }
  int64_t num_available() const override { return static_cast<int64_t>(free_.size()); }
  std::optional<int32_t> take() override {
    if (free_.empty()) return std::nullopt;
    int32_t b = free_.back();
    free_.pop_back();
    holders_[static_cast<size_t>(b)] = 1;
    return b;
  }
  void share(int32_t b) override { holders_[static_cast<size_t>(b)]++; }
  void give_back(int32_t b) override {
    if (--holders_[static_cast<size_t>(b)] == 0) free_.push_back(b);
  }
  PrefixHit match(std::span<const int32_t>, const std::string&, int64_t, bool) override { return {}; }
  ChainCursor open_chain(const std::string&) override { return {}; }
  void publish(ChainCursor& cursor, std::span<const int32_t>, int32_t) override { cursor.num_blocks++; }

 private:
  std::vector<int> holders_;
  std::vector<int32_t> free_;
};

}  // namespace deepinfer::sched
