// Any byte range equals the same bytes of the whole; values have the wanted moments; a written checkpoint opens.

#include "weights/random_weights.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/dtype.h"
#include "weights/checkpoint.h"
#include "weights/random_checkpoint.h"
#include "weights/random_shapes.h"
#include "weights/test_files.h"

namespace deepinfer::weights {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

WeightSpec spec_of(Kind kind, int64_t rows, int64_t cols, std::string name = "layers.0.x.weight") {
  return {.name = std::move(name), .kind = kind, .part = Part::kAttention, .rank = 2, .rows = rows, .cols = cols};
}

TEST(RandomTensor, RangesAgreeWithTheWhole) {
  for (Kind kind : {Kind::kBF16, Kind::kF32, Kind::kFp8, Kind::kFp8Row, Kind::kFp4}) {
    WeightSpec spec = spec_of(kind, 64, 96);
    RandomTensor tensor(spec, 5);
    std::vector<std::byte> whole(static_cast<size_t>(spec.code_bytes()));
    tensor.codes(0, whole);
    for (int64_t begin : {0, 1, 15, 16, 31, 33, 100, 1000}) {
      for (int64_t size : {0, 1, 7, 64, 129}) {
        std::vector<std::byte> part(static_cast<size_t>(size));
        tensor.codes(begin, part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin))
            << kind_name(kind) << " " << begin << " " << size;
      }
    }
  }
}

// Decoded values of a quantised tensor.
std::vector<float> decode(const WeightSpec& spec, uint64_t seed) {
  RandomTensor tensor(spec, seed);
  std::vector<std::byte> codes(static_cast<size_t>(spec.code_bytes())), scales(static_cast<size_t>(spec.scale_bytes()));
  tensor.codes(0, codes);
  tensor.scales(0, scales);
  std::vector<float> values;
  for (int64_t r = 0; r < spec.rows; ++r) {
    for (int64_t c = 0; c < spec.cols; ++c) {
      int64_t scale_row = spec.kind == Kind::kFp8 ? r / 32 : r;
      float scale =
          ue8m0_to_float(static_cast<uint8_t>(scales[static_cast<size_t>(scale_row * spec.scale_cols() + c / 32)]));
      int64_t i = r * spec.cols + c;
      if (spec.kind == Kind::kFp4) {
        auto byte = static_cast<uint8_t>(codes[static_cast<size_t>(i / 2)]);
        values.push_back(scale * e2m1_to_float(static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4)));
      } else {
        values.push_back(scale * e4m3_to_float(static_cast<uint8_t>(codes[static_cast<size_t>(i)])));
      }
    }
  }
  return values;
}

TEST(RandomTensor, QuantisedValuesHaveTheWantedDeviation) {
  for (Kind kind : {Kind::kFp8, Kind::kFp8Row, Kind::kFp4}) {
    for (int64_t cols : {96, 128, 256, 480}) {
      WeightSpec spec = spec_of(kind, 512, cols);
      double sum = 0, squares = 0;
      auto values = decode(spec, 3);
      for (float v : values) sum += v, squares += double{v} * v;
      double n = static_cast<double>(values.size()), want = random_distribution(spec).std;
      EXPECT_NEAR(sum / n, 0, 0.02 * want);
      EXPECT_NEAR(std::sqrt(squares / n), want, 0.06 * want) << kind_name(kind) << " " << cols;
    }
  }
}

TEST(RandomTensor, NamesAndSeedsDiffer) {
  auto bytes = [](const char* name, uint64_t seed) {
    std::vector<std::byte> out(64);
    RandomTensor(spec_of(Kind::kFp8, 32, 32, name), seed).codes(0, out);
    return out;
  };
  EXPECT_EQ(bytes("a.weight", 1), bytes("a.weight", 1));
  EXPECT_NE(bytes("a.weight", 1), bytes("b.weight", 1));
  EXPECT_NE(bytes("a.weight", 1), bytes("a.weight", 2));
}

TEST(RandomShapes, FlashWithEightLayers) {
  auto c = random_shape("flash", {.layers = 8});
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->hidden_size, 5120);
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(c->kv_source_layer_ids, ElementsAre(2, 5));
  EXPECT_THAT(c->index_source_layer_ids, ElementsAre(2, 5, 7));
  EXPECT_EQ(c->candidate_source_layer_id, 5);
  EXPECT_THAT(c->engram_layer_ids, ElementsAre(1));
  EXPECT_THAT(c->dspark_target_layer_ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(c->boundary_layer(), 5);
}

TEST(RandomShapes, FlashWithFortyLayersIsTheReleasedModel) {
  auto c = random_shape("flash", {.engram_vocab = 16000000}).value();
  c.vision = load_config(golden("released"))->vision;
  EXPECT_EQ(config_json(c), config_json(load_config(golden("released")).value()));
}

TEST(RandomShapes, AnyNumberOfLayersIsLegal) {
  for (int layers = 1; layers <= 48; ++layers) {
    auto c = random_shape("flash", {.layers = layers, .experts = 3});
    EXPECT_TRUE(c) << layers << ": " << c.error().message;
  }
  for (const char* name : {"bench", "tiny"}) EXPECT_TRUE(random_shape(name, {}));
  EXPECT_THAT(random_shape("huge", {}).error().message, HasSubstr("'huge'"));
  EXPECT_THAT(random_shape("tiny", {.layers = 3}).error().message, HasSubstr("--layers 3"));
}

TEST(RandomCheckpoint, OpensAndHoldsWhatTheGeneratorGives) {
  ScratchDirectory dir;
  ThreadPool pool(2);
  auto config = random_shape(golden("random-small/checkpoint/config.json"), {}).value();
  auto written = write_random_checkpoint(config, dir.file("m"), {.seed = 9, .shard_bytes = 1 << 20}, pool);
  ASSERT_TRUE(written) << written.error().message;
  auto c = Checkpoint::open(dir.file("m"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_GT(c->files().paths.size(), 3u);
  for (const char* name : {"layers.3.ffn.experts.5.w2.weight", "layers.0.attn.wkv.weight", "head.weight"}) {
    const WeightSpec& spec = *c->find(name);
    auto view = c->map(name).value();
    RandomTensor tensor(spec, 9);
    std::vector<std::byte> codes(static_cast<size_t>(spec.code_bytes())),
        scales(static_cast<size_t>(spec.scale_bytes()));
    tensor.codes(0, codes);
    tensor.scales(0, scales);
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), view.codes)) << name;
    EXPECT_TRUE(std::equal(scales.begin(), scales.end(), reinterpret_cast<const std::byte*>(view.scales))) << name;
  }
  auto in_memory = Checkpoint::random(config, 9, pool).value();
  for (const WeightSpec& spec : c->specs()) {
    auto a = c->map(spec.name).value(), b = in_memory.map(spec.name).value();
    ASSERT_EQ(std::memcmp(a.codes, b.codes, static_cast<size_t>(spec.code_bytes())), 0) << spec.name;
    if (!spec.is_quantised()) continue;
    ASSERT_EQ(std::memcmp(a.scales, b.scales, static_cast<size_t>(spec.scale_bytes())), 0) << spec.name;
  }
  std::vector<std::byte> row(256);
  ASSERT_TRUE(in_memory.read("embed.weight", {3, 4, 0, 128}, row, {}, nullptr));
  EXPECT_EQ(std::memcmp(row.data(), c->map("embed.weight").value().codes + 3 * 256, 256), 0);
  EXPECT_THAT(write_random_checkpoint(config, dir.file("m"), {}, pool).error().message, HasSubstr("already"));
}

}  // namespace
}  // namespace deepinfer::weights
