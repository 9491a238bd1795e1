// The longer comparisons of the reference backend with the golden files: many short prompts, truncated and replayed
// ones.
#include <gtest/gtest.h>

#include "kernels/ref/formats.h"
#include "model/testing.h"

namespace deepinfer::model {
namespace {

class GoldenPrompts : public testing::TestWithParam<std::pair<const char*, kernels::Numerics>> {};

TEST_P(GoldenPrompts, ShortOnesAndImageSpan) {
  const Golden gold(GetParam().first), common("common");
  TestModel model({.numerics = GetParam().second});
  const std::vector<int32_t> ids = common.ids("input_ids");
  const std::vector<int64_t> lengths = common.integers("short_lengths");
  const std::vector<float> want = gold.floats("short_logits");
  for (size_t i = 0; i < lengths.size(); ++i) {
    model.restart();
    const TestSequence s = model.sequence({ids.begin(), ids.begin() + lengths[i]});
    const std::vector<float> logits = model.prefill(s);
    EXPECT_LE(largest_difference(std::span(logits).last(512), std::span(want).subspan(i * 512, 512)), kTolerance)
        << lengths[i];
  }
  model.restart();
  const TestSequence image = model.sequence({ids.begin(), ids.begin() + 40}, common.mask("image_mask"));
  EXPECT_LE(largest_difference(model.prefill(image, 4), gold.floats("image_logits")), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Exact, GoldenPrompts,
                         testing::Values(std::pair{"fp32", kernels::Numerics::kFp32},
                                         std::pair{"qat", kernels::Numerics::kQat}),
                         [](const auto& c) { return std::string(c.param.first); });

// Truncated prefill and replayed hits (replay.md), against the oracle's mask form.
struct ReplayCase {
  const char* numerics;
  const char* name;
  int64_t keep, hit, replay;
};
class GoldenReplay : public testing::TestWithParam<ReplayCase> {};

TEST_P(GoldenReplay, LogitsCompressedRowsAndDraft) {
  const Golden gold("replay");
  const ReplayCase c = GetParam();
  TestModel model({.numerics = kernels::parse_numerics(c.numerics).value()});
  TestSequence cold = model.sequence(gold.ids("ids")), s = model.sequence(gold.ids("ids"));
  const auto length = static_cast<int64_t>(s.ids.size());
  const int64_t start = c.hit - c.replay, keep_from = length - c.keep;
  if (c.hit > 0) {  // the hit's blocks come from a cold run
    model.prefill(cold);
    std::copy_n(cold.blocks.begin(), c.hit / 128, s.blocks.begin());
  }
  for (int64_t chunk : {length, int64_t{64}, int64_t{7}}) {
    const bool is_masked = chunk == 64;
    std::vector<float> logits;
    for (int64_t at = start; at < length; at += chunk) {
      const auto part = model.forward({{.sequence = &s,
                                        .begin = at,
                                        .end = std::min(length, at + chunk),
                                        .window_floor = start,
                                        .write_floor = c.hit,
                                        .keep_from = keep_from,
                                        .is_masked = is_masked}});
      logits.insert(logits.end(), part.begin(), part.end());
    }
    const std::string key = fmt::format("{}.{}.", c.numerics, c.name);
    const std::vector<float> want = gold.floats(key + "logits");
    EXPECT_LE(largest_difference(std::span(logits).last(20 * 512), want), kTolerance) << chunk;
    const Proposal p = model.propose({{.slot = s.slot, .last_pos = length - 1, .anchor = model.greedy(logits)}})[0];
    EXPECT_EQ(p.tokens, gold.ids(key + "draft"));
    EXPECT_LE(largest_difference(p.confidence, gold.floats(key + "confidence")), 1e-3);
    for (int layer : model.config().kv_source_layer_ids) {
      const kernels::GlobalCache cache = model.rank().global.cache(layer);
      std::vector<float> entries(16 * 64), keys(16 * 32);
      for (int g = 0; g < 16; ++g) {
        const int64_t group = 256 / cache.ratio + g;
        kernels::ref::decode_entry(cache, s.blocks.data(), group, entries.data() + g * 64);
        kernels::ref::decode_index_key(cache, s.blocks.data(), group, keys.data() + g * 32);
      }
      EXPECT_LE(largest_difference(entries, gold.floats(fmt::format("{}latent.{}", key, layer))), kTolerance);
      EXPECT_LE(largest_difference(keys, gold.floats(fmt::format("{}index_k.{}", key, layer))), kTolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenReplay,
                         testing::Values(ReplayCase{"fp32", "off", 400, 0, 0}, ReplayCase{"fp32", "keep", 20, 0, 0},
                                         ReplayCase{"fp32", "bounded", 20, 256, 8},
                                         ReplayCase{"fp32", "deep", 20, 256, 42}, ReplayCase{"qat", "off", 400, 0, 0},
                                         ReplayCase{"qat", "keep", 20, 0, 0}, ReplayCase{"qat", "deep", 20, 256, 42},
                                         ReplayCase{"qat", "bounded", 20, 256, 8}),
                         [](const auto& c) { return fmt::format("{}_{}", c.param.numerics, c.param.name); });

}  // namespace
}  // namespace deepinfer::model
