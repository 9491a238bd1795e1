#include "text/compressed_vocabulary.h"

#include <cstring>

#include "base/hash.h"
#include "text/test_files.h"
#include "text/unicode.h"

namespace deepinfer::text {
namespace {

std::string folded(std::string_view text) {
  std::string out;
  append_folded(text, out);
  return out;
}

TEST(Unicode, FoldsCompatibilityFormsMarksAndCase) {
  EXPECT_EQ(folded("Ünïcode ÀÉ"), "unicode ae");
  EXPECT_EQ(folded("ﬁ Ⅳ ½ ｶﾞ"), "fi iv 1⁄2 カ");
  EXPECT_EQ(folded("İΣß"), "iσß");
  EXPECT_EQ(folded("각"), "\u1100\u1161\u11A8");
  EXPECT_EQ(folded("가"), "\u1100\u1161");
  EXPECT_EQ(folded("\u0301"), "");
}

TEST(CompressedVocabulary, MatchesTheGoldenMapOfTheFixture) {
  auto tokenizer = Tokenizer::load(kFixtureTokenizer);
  ASSERT_TRUE(tokenizer);
  auto golden = read_file(source_path("tests/golden/random-small/golden/common.safetensors"));
  ASSERT_TRUE(golden);
  uint64_t header_size = 0;
  std::memcpy(&header_size, golden->data(), 8);
  auto header = JsonTree::parse(golden->substr(8, header_size));
  ASSERT_TRUE(header);
  JsonValue tensor = header->root().find("token_map");
  std::vector<int32_t> range = to_ids(tensor.find("data_offsets"));
  ASSERT_EQ(tensor.find("dtype").text(), "I64");
  std::vector<int64_t> expected(static_cast<std::size_t>(range[1] - range[0]) / 8);
  std::memcpy(expected.data(), golden->data() + 8 + header_size + range[0], expected.size() * 8);
  CompressedVocabulary map = compress_vocabulary(*tokenizer);
  EXPECT_EQ(std::vector<int64_t>(map.ids.begin(), map.ids.end()), expected);
}

TEST(CompressedVocabulary, MatchesTheReleasedOne) {
  CompressedVocabulary map = compress_vocabulary(released_tokenizer());
  EXPECT_EQ(map.size, 99092);
  ASSERT_EQ(map.ids.size(), 129280u);
  for (int32_t i = 0; i < 8; ++i) EXPECT_EQ(map.ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(map.ids[671], 237);
  EXPECT_EQ(map.ids[270], 237);
  EXPECT_EQ(map.ids[4787], 4015);
  EXPECT_EQ(map.ids[13769], 9933);
  EXPECT_EQ(map.ids[12229], 9933);
  EXPECT_EQ(map.ids[46012], 18307);
  EXPECT_EQ(map.ids[128799], 98611);
  // Digest of the whole map (little-endian int32), from the reference: scripts/check_tokenizer.py prints it.
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(map.ids)))),
            "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
}

TEST(CompressedVocabulary, MatchesTheReferenceForTheTinyModel) {
  auto tokenizer = Tokenizer::load(kTinyTokenizer);
  ASSERT_TRUE(tokenizer);
  CompressedVocabulary map = compress_vocabulary(*tokenizer);
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span(map.ids)))),
            "274dd93efd381ae98160a775bfe895036d93a779a4b0304c189d308a099c3ede");
}

}  // namespace
}  // namespace deepinfer::text
