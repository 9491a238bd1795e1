// Every code point through every tokenizer, against digests of the ids that the reference library gives
// (scripts/check_tokenizer.py prints them): catches a wrong character class anywhere in Unicode.

#include "base/hash.h"
#include "text/test_files.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

std::string digest_of_code_points(const Tokenizer& t) {
  std::vector<int32_t> ids;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string alone, between = "a ";
    append_utf8(c, alone);
    between += alone + "b1" + alone;
    t.encode(alone, ids);
    t.encode(between, ids);
  }
  return hex(sha256(std::as_bytes(std::span(ids))));
}

TEST(CodePoints, ReleasedTokenizerAgreesWithTheReference) {
  EXPECT_EQ(digest_of_code_points(released_tokenizer()),
            "42d256bc81d2d11649a9fa9db78012af6bab1183c32e5a5627adb1950816bb00");
}

TEST(CodePoints, TinyTokenizerAgreesWithTheReference) {
  auto t = Tokenizer::load(kTinyTokenizer);
  ASSERT_TRUE(t);
  EXPECT_EQ(digest_of_code_points(*t), "133905d359d128516df2c34c88b61dabd13b34ab2025acf9bc8eb3b5b83d4e4b");
}

TEST(CodePoints, FixtureTokenizerAgreesWithTheReference) {
  auto t = Tokenizer::load(kFixtureTokenizer);
  ASSERT_TRUE(t);
  EXPECT_EQ(digest_of_code_points(*t), "a12c007470908f517d318b4948c6d713c562d24e72d5727188fe9f548ec5f020");
}

}  // namespace
}  // namespace deepinfer::text
