#include "text/tokenizer.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>

#include "text/detokenizer.h"
#include "text/test_files.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

std::vector<int32_t> encode(const Tokenizer& t, std::string_view text) {
  std::vector<int32_t> ids;
  t.encode(text, ids);
  return ids;
}

std::vector<int32_t> encode_plain(const Tokenizer& t, std::string_view text) {
  std::vector<int32_t> ids;
  t.encode_plain(text, ids);
  return ids;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

TEST(Tokenizer, EncodesAndDecodesEveryCaseAsTheReferenceDoes) {
  const Tokenizer& t = released_tokenizer();
  int num_cases = 0;
  for (JsonValue c : case_file("tokenizer_cases").root().find("cases")) {
    ++num_cases;
    std::string_view text = c.find("text").text();
    std::vector<int32_t> ids = to_ids(c.find("ids"));
    EXPECT_EQ(encode(t, text), ids) << text;
    EXPECT_EQ(encode_plain(t, text), c.find("ids_plain").is_missing() ? ids : to_ids(c.find("ids_plain"))) << text;
    std::string_view decoded = c.find("decoded").is_missing() ? text : c.find("decoded").text();
    EXPECT_EQ(t.decode(ids), decoded);
    JsonValue skipped = c.find("decoded_skip_special");
    EXPECT_EQ(t.decode(ids, true), skipped.is_missing() ? decoded : skipped.text());
  }
  EXPECT_EQ(num_cases, 320);
}

TEST(Tokenizer, KnowsTheIdOfEveryByte) {
  const Tokenizer& t = released_tokenizer();
  std::vector<int32_t> ids = to_ids(case_file("tokenizer_cases").root().find("byte_token_ids"));
  ASSERT_EQ(ids.size(), 256u);
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(t.token_bytes(ids[static_cast<std::size_t>(b)]), std::string(1, static_cast<char>(b)));
  }
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const Tokenizer& t = released_tokenizer();
  int num_cases = 0;
  for (JsonValue c : case_file("tokenizer_cases").root().find("invalid_utf8")) {
    ++num_cases;
    std::string bytes = from_hex(c.find("bytes_hex").text()), repaired;
    append_lossy(bytes, repaired);
    EXPECT_EQ(repaired, c.find("lossy_text").text());
    EXPECT_EQ(encode(t, bytes), to_ids(c.find("ids")));
    EXPECT_EQ(encode_plain(t, bytes), to_ids(c.find("ids")));
  }
  EXPECT_EQ(num_cases, 14);
}

TEST(Tokenizer, DecodesFragmentsAndSpecialTokens) {
  const Tokenizer& t = released_tokenizer();
  int num_cases = 0;
  for (JsonValue c : case_file("tokenizer_cases").root().find("decode")) {
    ++num_cases;
    std::vector<int32_t> ids = to_ids(c.find("ids"));
    EXPECT_EQ(t.decode(ids), c.find("text").text()) << c.find("note").text();
    EXPECT_EQ(t.decode(ids, true), c.find("text_skip_special").text()) << c.find("note").text();
  }
  EXPECT_EQ(num_cases, 18);
  EXPECT_EQ(t.decode(std::vector<int32_t>{-1, t.num_ids(), 1 << 30}), "");
}

TEST(Detokenizer, GivesTheReferencePieceAfterEachId) {
  const Tokenizer& t = released_tokenizer();
  int num_cases = 0;
  for (JsonValue c : case_file("tokenizer_cases").root().find("stream")) {
    ++num_cases;
    std::vector<int32_t> ids = to_ids(c.find("ids"));
    Detokenizer detokenizer(t);
    std::size_t i = 0;
    for (JsonValue piece : c.find("pieces")) {
      std::string text;
      detokenizer.push(ids[i++], text);
      EXPECT_EQ(text, piece.text());
    }
    EXPECT_EQ(i, ids.size());
  }
  EXPECT_EQ(num_cases, 9);
}

TEST(Detokenizer, JoinedPiecesAreTheDecodedSequenceForAnyIds) {
  const Tokenizer& t = released_tokenizer();
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(random() % 40);
    // Mostly single bytes: those make broken characters.
    for (auto& id : ids) id = static_cast<int32_t>(random() % 4 != 0 ? 3 + random() % 256 : random() % 129300);
    std::string text, bytes, whole;
    Detokenizer detokenizer(t);
    for (int32_t id : ids) {
      detokenizer.push(id, text);
      bytes += t.token_bytes(id);
      EXPECT_LE(detokenizer.num_pending(), 3);
    }
    detokenizer.finish(text);
    append_lossy(bytes, whole);
    EXPECT_EQ(text, whole);
    EXPECT_EQ(text, t.decode(ids));
  }
}

TEST(Tokenizer, EncodesMarkedRangesAsControlTokensAndTheRestPlainly) {
  const Tokenizer& t = released_tokenizer();
  std::string text = "<｜User｜>hi <｜User｜>";
  std::vector<int32_t> ids;
  ASSERT_TRUE(t.encode_marked(text, std::vector<ByteRange>{{0, 12}}, ids));
  ASSERT_FALSE(ids.empty());
  EXPECT_EQ(ids[0], *t.added_id("<｜User｜>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ids[0]), 1);
  EXPECT_EQ(t.decode(ids), text);
  auto result = t.encode_marked(text, std::vector<ByteRange>{{0, 4}}, ids);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("no control token"), std::string::npos);
}

TEST(Detokenizer, DropsOrReplacesACharacterCutShortAndKeepsWhatStoodBeforeIt) {
  const Tokenizer& t = released_tokenizer();
  std::string chat, raw;
  for (std::string* text : {&chat, &raw}) {
    Detokenizer detokenizer(t);
    detokenizer.push(53769, *text);  // a space and three bytes of an emoji
    EXPECT_EQ(*text, "");
    detokenizer.finish(*text, text == &raw ? Detokenizer::CutCharacter::kReplace : Detokenizer::CutCharacter::kDrop);
  }
  EXPECT_EQ(chat, " ");
  EXPECT_EQ(raw, " \uFFFD");
}

// The steps of the merge procedure grow in proportion when hostile text doubles, not with its square.
TEST(MergeTable, StepsOnOneHugePieceGrowAlmostLinearly) {
  std::vector<Merge> merges;
  for (int32_t k = 0; k < 12; ++k) merges.push_back({.left = k, .right = k, .result = k + 1});
  auto table = MergeTable::build(merges);
  ASSERT_TRUE(table);
  auto steps = [&](std::size_t n) {
    std::vector<int32_t> ids(n, 0);
    int64_t count = 0;
    int64_t left = table->apply(ids, &count);
    EXPECT_EQ(left, static_cast<int64_t>(n >> 12));
    return count;
  };
  int64_t half = steps(std::size_t{1} << 19), full = steps(std::size_t{1} << 20);
  EXPECT_LT(full, 3 * half);
  EXPECT_LT(full, int64_t{4} << 20);
}

// Both procedures of MergeTable, against the definition.
TEST(MergeTable, MergesTheLowestPairLeftmostFirst) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    // Any pair may merge into any id: ranks need not rise with ids.
    std::vector<Merge> merges;
    for (int32_t a = 0; a < 5; ++a) {
      for (int32_t b = 0; b < 5; ++b) {
        if (random() % 2 != 0) merges.push_back({.left = a, .right = b, .result = static_cast<int32_t>(random() % 5)});
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
    auto table = MergeTable::build(merges);
    ASSERT_TRUE(table);
    std::vector<int32_t> ids(random() % 120), expected;
    for (auto& id : ids) id = static_cast<int32_t>(random() % 5);
    expected = ids;
    for (std::size_t rank = 0; rank < merges.size();) {
      auto at = std::adjacent_find(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
        return a == merges[rank].left && b == merges[rank].right;
      });
      if (at == expected.end()) {
        ++rank;
        continue;
      }
      *at = merges[rank].result;
      expected.erase(at + 1);
      rank = 0;
    }
    ids.resize(static_cast<std::size_t>(table->apply(ids)));
    EXPECT_EQ(ids, expected);
  }
}

TEST(Tokenizer, HandlesHostileTextOfMegabytes) {
  const Tokenizer& t = released_tokenizer();
  std::string letters(1 << 20, 'a'), spaces(1 << 20, ' '), control, prefixes, random_letters;
  for (int i = 0; i < 1000000; ++i) control += "<think>";
  for (int i = 0; i < 100000; ++i) prefixes += "<｜place▁holder▁no▁";
  std::mt19937 random(1);
  for (int i = 0; i < 1 << 20; ++i) random_letters += static_cast<char>('a' + random() % 26);
  for (const std::string* text : {&letters, &spaces, &control, &prefixes, &random_letters}) {
    EXPECT_EQ(t.decode(encode(t, *text)), *text);
  }
  EXPECT_EQ(encode(t, control).size(), 1000000u);
}

TEST(Tokenizer, LoadsTheFixtureAndTheTinyModel) {
  auto fixture = Tokenizer::load(kFixtureTokenizer);
  ASSERT_TRUE(fixture) << fixture.error().message;
  EXPECT_EQ(fixture->num_ids(), 512);
  auto tiny = Tokenizer::load(source_path("models/tiny"));
  ASSERT_TRUE(tiny) << tiny.error().message;
  std::string text = "It's 1234 o'clock,  said\n\nthe cat. 中文 é";
  EXPECT_EQ(fixture->decode(encode(*fixture, text)), text);
  EXPECT_EQ(tiny->decode(encode(*tiny, text)), text);
  EXPECT_TRUE(tiny->added_id("<｜User｜>"));
}

std::string read_fixture() {
  return read_file(kFixtureTokenizer).value();
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  auto at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

TEST(Tokenizer, NamesWhatIsWrongInTokenizerJson) {
  auto message = [](std::string json) {
    auto t = Tokenizer::parse(std::move(json));
    if (t) return std::string("loaded");
    EXPECT_EQ(exit_code(t.error()), 2);
    return t.error().message;
  };
  std::string good = read_fixture();
  EXPECT_EQ(message(good), "loaded");
  EXPECT_THAT(message(good.substr(0, good.size() / 2)), testing::HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(message("{}"), testing::HasSubstr("no object 'model'"));
  EXPECT_THAT(message(replaced(good, "\"BPE\"", "\"Unigram\"")),
              testing::HasSubstr("model type \"Unigram\" is not supported"));
  EXPECT_THAT(message(replaced(good, "\"ByteLevel\"", "\"Metaspace\"")), testing::HasSubstr("pre_tokenizer"));
  EXPECT_THAT(message(replaced(good, "\"byte_fallback\": false", "\"byte_fallback\": true")),
              testing::HasSubstr("byte_fallback true is not supported"));
  EXPECT_THAT(message(replaced(good, "\"!\": 3", "\"!\": 4")), testing::HasSubstr("repeats the id 4"));
  EXPECT_THAT(message(replaced(good, "\"lstrip\": false", "\"lstrip\": true")), testing::HasSubstr("lstrip of"));
}

TEST(Tokenizer, NamesBrokenMerges) {
  auto with_merges = [](std::string_view merges) {
    std::string json = read_fixture();
    auto begin = json.find("\"merges\""), end = json.rfind(']');
    EXPECT_TRUE(begin != json.npos && end > begin);
    json = json.substr(0, begin) + "\"merges\": " + std::string(merges) + json.substr(end + 1);
    auto t = Tokenizer::parse(json);
    return t ? std::string("loaded") : t.error().message;
  };
  EXPECT_EQ(with_merges("[\"Ġ t\", [\"1\", \"0\"]]"), "loaded");
  EXPECT_THAT(with_merges("[\"Ġ t\", \"Ġ ☃\"]"), testing::HasSubstr("merge 1 needs '☃'"));
  EXPECT_THAT(with_merges("[\"z\"]"), testing::HasSubstr("merge 0 is \"z\""));
  EXPECT_THAT(with_merges("[\"Ġ t\", \"Ġ t\"]"), testing::HasSubstr("merge 1 repeats merge 0"));
  EXPECT_THAT(with_merges("[3]"), testing::HasSubstr("merge 0 is 3"));
}

}  // namespace
}  // namespace deepinfer::text
