// The golden checkpoint opens and delivers exact bytes; damaged copies of it are refused by name.

#include "weights/checkpoint.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"
#include "weights/verify.h"

namespace deepinfer::weights {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string source() {
  return golden("random-small/checkpoint");
}

// A copy of the golden checkpoint that a test may damage.
class Copy : public ScratchDirectory {
 public:
  Copy() {
    for (const auto& entry : fs::directory_iterator(source())) {
      fs::copy_file(entry.path(), file(entry.path().filename()));
      fs::permissions(file(entry.path().filename()), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  // Replaces the first occurrence of `from` by text of the same length.
  void patch(const std::string& name, const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = read_file(file(name)).value();
    auto at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    ASSERT_TRUE(write_file(file(name), bytes.replace(at, from.size(), to)));
  }
  std::string error() const {
    auto r = Checkpoint::open(path());
    if (r) return "accepted";
    EXPECT_EQ(exit_code(r.error()), 2);
    return r.error().message;
  }
};

TEST(Checkpoint, OpensTheGoldenOne) {
  auto c = Checkpoint::open(source());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(c->unknown_tensors().empty());
  EXPECT_EQ(totals(c->specs()).num_tensors, static_cast<int64_t>(c->files().entries.size()));
  EXPECT_EQ(c->delivered_bytes(), 0);
  EXPECT_EQ(c->find("layers.0.attn.wq_x.weight"), nullptr);
}

TEST(Checkpoint, ReadsWhatIsMapped) {
  auto c = Checkpoint::open(source()).value();
  ThreadPool pool(2);
  for (const char* name : {"embed.weight", "layers.0.attn.wq_b.weight", "layers.1.engram.embed.weight",
                           "layers.3.ffn.experts.5.w1.weight", "layers.2.hc_attn_fn", "layers.2.attn.attn_sink"}) {
    const WeightSpec& spec = *c.find(name);
    Slice whole = c.whole(spec);
    Slice part = whole;
    if (spec.rows >= 128) part = {.row_begin = 32, .row_end = 96, .col_begin = 32, .col_end = whole.col_end};
    if (spec.cols == 32) part.col_begin = 0;
    for (const Slice& slice : {whole, part}) {
      auto view = c.map(name, slice).value();
      SliceBytes size = slice_bytes(spec, slice);
      std::vector<std::byte> codes(static_cast<size_t>(size.codes));
      std::vector<uint8_t> scales(static_cast<size_t>(size.scales));
      ASSERT_TRUE(c.read(name, slice, codes, scales, &pool));
      const size_t row = codes.size() / static_cast<size_t>(slice.rows());
      for (int64_t r = 0; r < slice.rows(); ++r) {
        ASSERT_EQ(std::memcmp(codes.data() + static_cast<size_t>(r) * row, view.codes + r * view.code_stride, row), 0)
            << name << " row " << r;
      }
      if (view.scales == nullptr) continue;
      const size_t scale_row = static_cast<size_t>((slice.cols() + 31) / 32);
      for (size_t r = 0; r * scale_row < scales.size(); ++r) {
        ASSERT_EQ(std::memcmp(scales.data() + r * scale_row, view.scales + static_cast<int64_t>(r) * view.scale_stride,
                              scale_row),
                  0)
            << name;
      }
    }
  }
}

TEST(Checkpoint, RanksCountTheirOwnBytes) {
  auto c = Checkpoint::open(source()).value();
  auto rank = c.for_rank();
  const WeightSpec& spec = *c.find("layers.0.attn.wq_b.weight");  // [512, 64]
  ASSERT_TRUE(rank.map(spec.name, {.row_begin = 0, .row_end = 256, .col_begin = 0, .col_end = 64}));
  EXPECT_EQ(rank.delivered_bytes(), 256 * 64 + 8 * 2);
  EXPECT_EQ(c.delivered_bytes(), 0);
}

TEST(Checkpoint, SlicesRespectScaleGroups) {
  auto c = Checkpoint::open(source()).value();
  EXPECT_THAT(c.map("layers.0.attn.wq_b.weight", {8, 64, 0, 64}).error().message, HasSubstr("cuts a scale group"));
  EXPECT_THAT(c.map("layers.0.attn.wq_b.weight", {0, 64, 0, 65}).error().message, HasSubstr("outside"));
  EXPECT_TRUE(c.map("layers.1.engram.embed.weight", {8, 9, 0, 32}));
  EXPECT_FALSE(c.map("nothing.weight"));
  std::vector<std::byte> small(3);
  EXPECT_THAT(c.read("embed.weight", {0, 1, 0, 128}, small, {}, nullptr).error().message, HasSubstr("256"));
}

TEST(Checkpoint, DamageIsNamed) {
  {
    Copy copy;
    fs::remove(copy.file("model-00002-of-00003.safetensors"));
    EXPECT_THAT(copy.error(), testing::AllOf(HasSubstr("model-00002-of-00003.safetensors"), HasSubstr("missing")));
  }
  {
    Copy copy;
    fs::resize_file(copy.file("model-00003-of-00003.safetensors"), 1000000);
    EXPECT_THAT(copy.error(),
                testing::AllOf(HasSubstr("model-00003-of-00003.safetensors"), HasSubstr("the file is cut")));
  }
  {
    Copy copy;
    copy.patch("model-00001-of-00003.safetensors", "\"embed.weight\":{\"dtype\":\"BF16\"",
               "\"embed.weight\":{\"dtype\":\"F16\" ");
    EXPECT_THAT(copy.error(),
                HasSubstr("tensor embed.weight is F16 [512, 128], the configuration wants BF16 [512, 128]"));
  }
  {
    Copy copy;
    copy.patch("model-00001-of-00003.safetensors", "\"shape\":[512,128]", "\"shape\":[128,512]");
    EXPECT_THAT(copy.error(), HasSubstr("the configuration wants BF16 [512, 128]"));
  }
  {
    Copy copy;
    copy.patch("model.safetensors.index.json", "\"embed.weight\"", "\"embex.weight\"");
    EXPECT_THAT(copy.error(), HasSubstr("tensor embex.weight is not in"));
  }
  {
    Copy copy;
    copy.patch("model.safetensors.index.json", "\"embed.weight\"", "\"embex.weight\"");
    copy.patch("model-00001-of-00003.safetensors", "\"embed.weight\"", "\"embex.weight\"");
    EXPECT_THAT(copy.error(), HasSubstr("tensor embed.weight (BF16 [512, 128]) is missing"));
  }
  {
    Copy copy;
    copy.patch("config.json", "\"hidden_size\": 128", "\"hidden_size\": 160");
    EXPECT_THAT(copy.error(), HasSubstr("the configuration wants BF16 [512, 160]"));
  }
}

TEST(Checkpoint, NanScalesAreRefused) {
  Copy copy;
  ThreadPool pool(2);
  {
    auto sound = verify(Checkpoint::open(copy.path()).value(), pool);
    ASSERT_TRUE(sound) << sound.error().message;
    EXPECT_LT(sound->max_scale, 130);
    EXPECT_EQ(sound->known_bytes, KnownBytes::kNotApplicable);
  }
  const std::string name = "layers.3.ffn.experts.5.w1.weight";
  auto c = Checkpoint::open(copy.path()).value();
  const TensorEntry* e = c.files().find("layers.3.ffn.experts.5.w1.scale");
  const std::string path = c.files().paths[static_cast<size_t>(e->shard)];
  std::string bytes = read_file(path).value();
  bytes[static_cast<size_t>(e->offset + 5)] = static_cast<char>(255);
  ASSERT_TRUE(write_file(path, bytes));
  auto damaged = Checkpoint::open(copy.path()).value();
  EXPECT_THAT(verify(damaged, pool).error().message,
              testing::AllOf(HasSubstr("layers.3.ffn.experts.5.w1.scale"), HasSubstr("row 1, column 1")));
  EXPECT_TRUE(damaged.map(name));  // too many to look at before the first token
  SliceBytes size = slice_bytes(*damaged.find(name), damaged.whole(*damaged.find(name)));
  std::vector<std::byte> codes(static_cast<size_t>(size.codes));
  std::vector<uint8_t> scales(static_cast<size_t>(size.scales));
  EXPECT_THAT(damaged.read(name, damaged.whole(*damaged.find(name)), codes, scales, &pool).error().message,
              HasSubstr("scale byte 255"));
}

TEST(Checkpoint, MappingADenseMatrixRefusesNaNScales) {
  Copy copy;
  {
    auto c = Checkpoint::open(copy.path()).value();
    const TensorEntry* e = c.files().find("layers.3.attn.wkv.scale");
    const std::string path = c.files().paths[static_cast<size_t>(e->shard)];
    std::string bytes = read_file(path).value();
    bytes[static_cast<size_t>(e->offset + 1)] = static_cast<char>(255);
    ASSERT_TRUE(write_file(path, bytes));
  }
  auto damaged = Checkpoint::open(copy.path()).value();
  EXPECT_THAT(damaged.map("layers.3.attn.wkv.weight").error().message, HasSubstr("scale byte 255"));
  EXPECT_TRUE(damaged.map("layers.3.attn.wq_a.weight"));
}

TEST(Checkpoint, AcceptsPrefixedNamesInOneFile) {
  // All tensors in one file under model.*, one value of each misaligned by a leading odd tensor.
  ScratchDirectory dir;
  auto c = Checkpoint::open(source()).value();
  std::vector<TensorEntry> entries = {{.name = "extra", .type = StoredType::kU8, .shape = {3}, .bytes = 3}};
  std::string payload = "abc";
  for (TensorEntry e : c.files().entries) {
    std::string bytes(static_cast<size_t>(e.bytes), '\0');
    auto file = File::open_read(c.files().paths[static_cast<size_t>(e.shard)]).value();
    ASSERT_TRUE(file.read_at(e.offset, std::as_writable_bytes(std::span(bytes))));
    e.name = "model." + e.name;
    e.offset = static_cast<int64_t>(payload.size());
    payload += bytes;
    entries.push_back(e);
  }
  ASSERT_TRUE(write_file(dir.file("model.safetensors"), make_header(entries) + payload));
  fs::copy_file(source() + "/config.json", dir.file("config.json"));
  auto joined = Checkpoint::open(dir.path());
  ASSERT_TRUE(joined) << joined.error().message;
  EXPECT_THAT(joined->unknown_tensors(), testing::ElementsAre("extra"));
  for (const char* name : {"layers.2.attn.attn_sink", "norm.weight", "layers.0.attn.wkv.weight"}) {
    auto a = c.map(name).value(), b = joined->map(name).value();
    EXPECT_EQ(std::memcmp(a.codes, b.codes, static_cast<size_t>(a.rows * a.code_stride)), 0) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.codes) % (a.kind == Kind::kF32 ? 4 : 1), 0u);
  }
}

TEST(Checkpoint, ReleasedLayoutInSparseFiles) {
  // 510 GB of holes in 48 shards: opening reads headers only.
  ScratchDirectory dir;
  fs::copy_file(golden("released/config.json"), dir.file("config.json"));
  const auto specs = inventory(load_config(dir.path()).value());
  constexpr int kShards = 48;
  const int64_t shard_bytes = totals(specs).num_bytes / kShards + 1;
  std::string map;
  std::vector<TensorEntry> entries;
  int shard = 0;
  int64_t payload = 0;
  auto flush = [&] {
    const std::string name = fmt::format("model-{:05d}-of-{:05d}.safetensors", ++shard, kShards);
    std::string header = make_header(entries);
    ASSERT_TRUE(write_file(dir.file(name), header));
    fs::resize_file(dir.file(name), header.size() + static_cast<size_t>(payload));
    for (const auto& e : entries) map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", e.name, name);
    entries.clear();
    payload = 0;
  };
  auto add = [&](const std::string& name, StoredType type, std::vector<int64_t> shape, int64_t bytes) {
    entries.push_back({.name = name, .type = type, .shape = std::move(shape), .offset = payload, .bytes = bytes});
    payload += bytes;
  };
  for (const WeightSpec& s : specs) {
    add(s.name, s.stored_type(), s.stored_shape(), s.code_bytes());
    if (s.is_quantised()) add(s.scale_name(), StoredType::kE8M0, {s.scale_rows(), s.scale_cols()}, s.scale_bytes());
    if (payload >= shard_bytes) flush();
  }
  flush();
  ASSERT_TRUE(write_file(dir.file("model.safetensors.index.json"), "{\"weight_map\":{" + map + "}}"));
  auto c = Checkpoint::open(dir.path());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->files().entries.size(), 96085u);
  EXPECT_EQ(c->vision_tensors().size(), 266u);
  std::vector<std::byte> row(256);
  std::vector<uint8_t> scale(8, 7);
  ASSERT_TRUE(c->read("layers.14.engram.embed.weight", {384016681, 384016682, 0, 256}, row, scale, nullptr));
  EXPECT_EQ(scale[7], 0);
  EXPECT_EQ(c->map("layers.1.engram.embed.weight", {384006167, 384006168, 0, 256})->scales[7], 0);
  EXPECT_EQ(c->delivered_bytes(), 2 * 264);
}

}  // namespace
}  // namespace deepinfer::weights
