#include "sched/index_ledger.h"

#include <numeric>

#include <gtest/gtest.h>

namespace deepinfer::sched {
namespace {

TEST(IndexLedger, PublishedBlocksAreFoundUnderTheirKeyOnly) {
  IndexLedger ledger(8, "k", {});
  std::vector<int32_t> tokens(3 * kBlockTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  ChainCursor cursor = ledger.open_chain("tenant");
  std::vector<int32_t> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(ledger.take().value());
    if (i == 2) cursor.exact = false;  // computed after a bounded replay
    ledger.publish(cursor, std::span(tokens).subspan(static_cast<std::size_t>(i) * kBlockTokens, kBlockTokens),
                   blocks.back());
  }
  EXPECT_EQ(cursor.num_blocks, 3);
  for (int32_t b : blocks) ledger.give_back(b);
  EXPECT_EQ(ledger.num_available(), 8);
  PrefixHit hit = ledger.match(tokens, "tenant", 9, false);
  EXPECT_EQ(hit.blocks, blocks);
  EXPECT_FALSE(hit.cursor.exact);
  PrefixHit exact = ledger.match(tokens, "tenant", 9, true);
  EXPECT_EQ(exact.blocks.size(), 2u);
  EXPECT_TRUE(exact.cursor.exact);
  EXPECT_TRUE(ledger.match(tokens, "other", 9, false).blocks.empty());
  EXPECT_EQ(ledger.num_available(), 5);
}

TEST(IndexLedger, AClosedChainPublishesNothing) {
  IndexLedger ledger(2, "k", {});
  std::vector<int32_t> tokens(kBlockTokens, 7);
  ChainCursor cursor;
  int32_t block = ledger.take().value();
  ledger.publish(cursor, tokens, block);
  ledger.give_back(block);
  EXPECT_TRUE(ledger.match(tokens, "", 1, false).blocks.empty());
}

}  // namespace
}  // namespace deepinfer::sched
