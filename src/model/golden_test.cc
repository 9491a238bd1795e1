// The reference backend against the golden files of the oracle (tests/golden/random-small).
#include <gtest/gtest.h>

#include "model/rope.h"
#include "model/testing.h"

namespace deepinfer::model {
namespace {

class Recorder final : public Observer {
 public:
  explicit Recorder(const ModelConfig& config)
      : config_(config), streams(static_cast<size_t>(config.num_hidden_layers) + 1) {}
  void on_streams(int layer, const TensorView& s, const TensorView&) override {
    for (int64_t t = 0; t < s.rows; ++t)
      streams[static_cast<size_t>(layer)].insert(streams[static_cast<size_t>(layer)].end(), s.f32(t),
                                                 s.f32(t) + s.cols);
  }
  void on_selection(int layer, const TensorView& chosen, const TensorView& candidates) override {
    selected[fmt::format("{}.chosen", layer)] = masks(chosen, 1);
    if (!candidates.empty())
      selected[fmt::format("{}.candidates", layer)] = masks(candidates, config_.candidate_block_size);
  }
  void on_engram_rows(int, const TensorView& rows) override {
    for (int64_t t = 0; t < rows.rows; ++t)
      engram_rows.insert(engram_rows.end(), rows.row<int64_t>(t), rows.row<int64_t>(t) + rows.cols);
  }

  // Masks over `entries` of every row.
  std::vector<uint8_t> mask(const std::string& name, int64_t entries) const {
    std::vector<uint8_t> out;
    for (const auto& row : selected.at(name)) {
      for (int64_t g = 0; g < entries; ++g) out.push_back(std::binary_search(row.begin(), row.end(), g));
    }
    return out;
  }

 private:
  static std::vector<std::vector<int64_t>> masks(const TensorView& ids, int64_t width) {
    std::vector<std::vector<int64_t>> rows;
    for (int64_t t = 0; t < ids.rows; ++t) {
      auto& row = rows.emplace_back();
      for (int64_t k = 0; k < ids.cols && ids.row<int32_t>(t)[k] >= 0; ++k) {
        for (int64_t i = 0; i < width; ++i) row.push_back(ids.row<int32_t>(t)[k] * width + i);
      }
    }
    return rows;
  }
  const ModelConfig& config_;

 public:
  std::vector<std::vector<float>> streams;
  std::map<std::string, std::vector<std::vector<int64_t>>> selected;
  std::vector<int64_t> engram_rows;
};

class GoldenPreset : public testing::TestWithParam<std::pair<const char*, kernels::Numerics>> {};

TEST_P(GoldenPreset, PromptLayersAndSelections) {
  const Golden gold(GetParam().first), common("common");
  TestModel model({.numerics = GetParam().second});
  const TestSequence s = model.sequence(common.ids("input_ids"));
  Recorder seen(model.config());
  const auto length = static_cast<int64_t>(s.ids.size());
  const std::vector<float> logits = model.forward({{.sequence = &s, .begin = 0, .end = length}}, &seen);
  EXPECT_LE(largest_difference(logits, gold.floats("logits")), kTolerance);
  for (int layer = 0; layer < model.config().num_hidden_layers; ++layer) {
    const std::vector<float> want = gold.floats(fmt::format("trace.layers.{}.streams", layer));
    const auto& mine = seen.streams[static_cast<size_t>(layer) + 1];
    EXPECT_LE(largest_difference(std::span(mine).last(want.size()), want), kTolerance) << "layer " << layer;
  }
  for (int layer : model.config().index_source_layer_ids) {
    const std::string name = fmt::format("trace.layers.{}.chosen", layer);
    EXPECT_EQ(seen.mask(fmt::format("{}.chosen", layer), gold.cols(name)), gold.mask(name)) << name;
  }
  EXPECT_EQ(seen.mask("6.candidates", length), gold.mask("trace.layers.6.candidates"));
  EXPECT_EQ(seen.engram_rows, gold.integers("trace.engram_rows"));
}

TEST_P(GoldenPreset, GreedyStepsWithDrafts) {
  const Golden gold(GetParam().first), common("common");
  TestModel model({.numerics = GetParam().second});
  std::vector<int32_t> ids = common.ids("input_ids");
  const auto length = static_cast<int64_t>(ids.size());
  const std::vector<int32_t> greedy = gold.ids("greedy_tokens"), drafts = gold.ids("draft_tokens");
  const std::vector<float> confidence = gold.floats("draft_confidence"), want = gold.floats("greedy_logits");
  ids.insert(ids.end(), greedy.begin(), greedy.end());
  const TestSequence s = model.sequence(ids);
  std::vector<float> logits = model.forward({{.sequence = &s, .begin = 0, .end = length}});
  for (size_t step = 0; step < greedy.size(); ++step) {
    ASSERT_EQ(model.greedy(logits), greedy[step]) << "step " << step;
    const auto pos = length + static_cast<int64_t>(step);
    const Proposal p = model.propose({{.slot = s.slot, .last_pos = pos - 1, .anchor = greedy[step]}})[0];
    EXPECT_EQ(p.tokens, std::vector<int32_t>(drafts.begin() + static_cast<int64_t>(step) * 5,
                                             drafts.begin() + static_cast<int64_t>(step) * 5 + 5));
    EXPECT_LE(largest_difference(p.confidence, std::span(confidence).subspan(step * 5, 5)), 1e-3);
    logits = model.forward({{.sequence = &s, .begin = pos, .end = pos + 1}});
    EXPECT_LE(largest_difference(logits, std::span(want).subspan(step * 512, 512)), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Exact, GoldenPreset,
                         testing::Values(std::pair{"fp32", kernels::Numerics::kFp32},
                                         std::pair{"qat", kernels::Numerics::kQat}),
                         [](const auto& c) { return std::string(c.param.first); });

TEST(GoldenVendor, FirstTokens) {
  const Golden gold("vendor"), common("common");
  TestModel model({.numerics = kernels::Numerics::kVendor,
                   .make_ops = [] { return kernels::make_ref_ops(kernels::Numerics::kVendor); }});
  std::vector<int32_t> ids = common.ids("input_ids");
  ids.resize(17);
  const TestSequence s = model.sequence(ids);
  Recorder seen(model.config());
  const std::vector<float> logits = model.forward({{.sequence = &s, .begin = 0, .end = 17}}, &seen);
  EXPECT_LE(largest_difference(logits, gold.floats("prefix17.logits")), 0.05);
  for (int layer = 0; layer < model.config().num_hidden_layers; ++layer) {
    const std::vector<float> want = gold.floats(fmt::format("prefix17.layers.{}.streams", layer));
    const auto& mine = seen.streams[static_cast<size_t>(layer) + 1];
    ASSERT_EQ(mine.size(), want.size());
    size_t equal = 0;
    for (size_t i = 0; i < want.size(); ++i) equal += mine[i] == want[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(equal) / static_cast<double>(want.size()), 0.99) << "layer " << layer;
  }
}

TEST(Rope, FrequenciesOfTheReleasedModel) {
  const ModelConfig released;
  const std::vector<float> compressed = rope_frequencies(released, true), plain = rope_frequencies(released, false);
  // model.md 3.7, to the last bit of fp32
  EXPECT_EQ(compressed[0], 1.f);
  EXPECT_EQ(compressed[1], 6.876560450e-1f);
  EXPECT_EQ(compressed[16], 2.265624935e-3f);
  EXPECT_EQ(compressed[20], 2.969777852e-4f);
  EXPECT_EQ(compressed[31], 5.680529398e-7f);
  EXPECT_EQ(plain[1], 7.498942018e-1f);
  EXPECT_EQ(plain[31], 1.333521504e-4f);
}

}  // namespace
}  // namespace deepinfer::model
