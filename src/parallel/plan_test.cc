#include "parallel/plan.h"

#include <gtest/gtest.h>

namespace deepinfer::parallel {
namespace {

ModelConfig released() {
  ModelConfig c;
  c.engram_num_embeddings = {384006168, 384016682};
  return c;
}

TEST(Shard, RangesCoverTheAxisAtQuanta) {
  for (int64_t count : {0, 1, 31, 32, 33, 2304, 5120, 129280}) {
    for (int parts : {1, 2, 3, 7, 64}) {
      const auto bounds = shard_bounds(count, 32, parts);
      ASSERT_EQ(bounds.size(), static_cast<size_t>(parts) + 1);
      EXPECT_EQ(bounds.front(), 0);
      EXPECT_EQ(bounds.back(), count);
      for (int p = 0; p < parts; ++p) {
        const Range r = shard_range(count, 32, parts, p);
        EXPECT_EQ(r.begin, bounds[static_cast<size_t>(p)]);
        EXPECT_EQ(r.end, bounds[static_cast<size_t>(p) + 1]);
        EXPECT_TRUE(r.end == count || r.end % 32 == 0);
        EXPECT_LE(r.size(), count / parts + 32);
      }
    }
  }
}

TEST(Shards, OfAllRanksMakeTheWhole) {
  const ModelConfig c = released();
  for (int n : {1, 2, 3, 5, 8, 12}) {
    const ParallelPlan plan = ParallelPlan::tensor(n);
    ASSERT_TRUE(validate(plan, c));
    int64_t heads = 0, hidden = 0, experts = 0, vocab = 0, table = 0;
    for (int r = 0; r < n; ++r) {
      const Shards s = Shards::make(c, plan, r);
      EXPECT_EQ(s.heads.begin, heads);
      EXPECT_EQ(s.group_columns.size(), s.groups.size() * c.o_lora_rank);
      EXPECT_EQ(s.hidden_bounds[static_cast<size_t>(r)], s.hidden.begin);
      heads = s.heads.end, hidden += s.hidden.size(), experts += s.experts.size(), vocab += s.vocab.size();
      table += s.engram_table[1].size();
    }
    EXPECT_EQ(heads, c.num_attention_heads);
    EXPECT_EQ(hidden, c.hidden_size);
    EXPECT_EQ(experts, c.n_routed_experts);
    EXPECT_EQ(vocab, c.vocab_size);
    EXPECT_EQ(table, c.engram_num_embeddings[1]);
  }
}

TEST(Shards, OneEngramMeansTheWholeTableForEverybody) {
  ParallelPlan plan = ParallelPlan::tensor(4);
  plan.engram = 1;
  EXPECT_EQ(Shards::make(released(), plan, 3).engram_table[0], (Range{0, 384006168}));
}

TEST(ParallelPlan, RefusesWhatIsNotBuilt) {
  const ModelConfig c = released();
  for (const ParallelPlan& plan : {ParallelPlan{.tp = 0}, ParallelPlan{.dp = 2}, ParallelPlan{.cp = 2},
                                   ParallelPlan{.tp = 2, .ep = 1}, ParallelPlan{.tp = 4, .ep = 4, .engram = 2}}) {
    EXPECT_FALSE(validate(plan, c)) << plan.description();
  }
  EXPECT_EQ(ParallelPlan::tensor(2).description(), "tp 2, ep 2, engram 2");
}

TEST(Placement, LaterRulesWin) {
  constexpr DeviceId kGpu{1};
  Placement placement;
  EXPECT_TRUE(placement.is_uniform());
  placement.add(PartKind::kExpert, {0, 43}, {0, 384}, kGpu);
  placement.add(PartKind::kExpert, {0, 40}, {6, 384}, DeviceId::kCpu);
  EXPECT_EQ(placement.device_of(0, PartKind::kExpert, 5), kGpu);
  EXPECT_EQ(placement.device_of(0, PartKind::kExpert, 6), DeviceId::kCpu);
  EXPECT_EQ(placement.device_of(41, PartKind::kExpert, 100), kGpu);
  EXPECT_EQ(placement.device_of(3, PartKind::kAttention), DeviceId::kCpu);
  EXPECT_FALSE(placement.is_uniform());
}

}  // namespace
}  // namespace deepinfer::parallel
