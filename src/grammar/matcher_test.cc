#include "grammar/matcher.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/testing/byte_vocabulary.h"

namespace deepinfer::grammar {
namespace {

Compiler& compiler() {
  static Compiler c([] { return byte_vocabulary(); }, {.num_threads = 1});
  return c;
}

const Vocabulary& vocabulary() {
  static const Vocabulary v = byte_vocabulary();
  return v;
}

Matcher matcher(const std::string& kind, const std::string& schema, Trigger trigger = {}) {
  auto grammar = compile_now(compiler(), {.schema_type = kind, .schema = schema});
  EXPECT_TRUE(grammar) << grammar.error().message;
  return Matcher(*grammar, std::move(trigger));
}

std::vector<bool> allowed(Matcher& m) {
  std::vector<uint32_t> mask(static_cast<size_t>(m.num_mask_words()));
  bool is_restricted = m.fill(mask.data()).value();
  std::vector<bool> ids(vocabulary().bytes.size(), true);
  for (size_t i = 0; i < ids.size() && is_restricted; ++i) ids[i] = mask[i / 32] >> (i % 32) & 1;
  return ids;
}

bool accepts(const std::string& kind, const std::string& schema, const std::string& text) {
  Matcher m = matcher(kind, schema);
  return accepts_bytes(m, text) && m.can_end();
}

TEST(Matcher, EveryKindAcceptsItsLanguageOnly) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  EXPECT_TRUE(accepts("json", schema, R"({"a": 12})"));
  EXPECT_FALSE(accepts("json", schema, R"({"a": "12"})"));
  EXPECT_FALSE(accepts("json", schema, R"({"a": 12, "b": 1})"));
  EXPECT_TRUE(accepts("json", "", R"([1, {"x": null}])"));
  EXPECT_TRUE(accepts("json_object", "", R"({"x": [true]})"));
  EXPECT_FALSE(accepts("json_object", "", "[1]"));
  EXPECT_TRUE(accepts("regex", "[a-c]+\\d{2}", "abca07"));
  EXPECT_FALSE(accepts("regex", "[a-c]+\\d{2}", "abca0"));
  EXPECT_TRUE(accepts("ebnf", "root ::= \"x\" (\"y\" | \"z\")*", "xyzzy"));
  EXPECT_FALSE(accepts("ebnf", "root ::= \"x\" (\"y\" | \"z\")*", "yx"));
  EXPECT_TRUE(accepts("choice", R"(["yes", "no"])", "no"));
  EXPECT_FALSE(accepts("choice", R"(["yes", "no"])", "noyes"));
}

TEST(Matcher, EndTokenIsAllowedWhereTheAnswerIsComplete) {
  Matcher m = matcher("choice", R"(["ab"])");
  auto eos = static_cast<size_t>(vocabulary().eos_id);
  EXPECT_FALSE(allowed(m)[eos]);
  ASSERT_TRUE(accepts_bytes(m, "ab"));
  std::vector<bool> end = allowed(m);
  EXPECT_TRUE(end[eos]);
  EXPECT_EQ(std::count(end.begin(), end.end(), true), 1);
  EXPECT_TRUE(m.accept(vocabulary().eos_id).value());
  EXPECT_TRUE(m.is_ended());
  EXPECT_TRUE(allowed(m)['q']);
}

TEST(Matcher, ControlTokensAreForStructuralTagsAlone) {
  auto think_end = static_cast<size_t>(vocabulary().controls[1].first);
  Matcher any = matcher("regex", "[^x]*");
  EXPECT_FALSE(allowed(any)[think_end]);
  Matcher tag = matcher("structural_tag", tag_of(after_reasoning(regex_format("ok").value())));
  EXPECT_TRUE(allowed(tag)[think_end]);
  EXPECT_FALSE(tag.can_end());
  ASSERT_TRUE(tag.accept(vocabulary().controls[1].first).value());
  EXPECT_FALSE(allowed(tag)['x']);
  EXPECT_TRUE(accepts_bytes(tag, "ok"));
  EXPECT_TRUE(tag.can_end());
}

// Masks, acceptance and rollback must agree at every step of random walks.
TEST(Matcher, RandomWalksRollBackToTheSameMasks) {
  std::mt19937 rng(1);
  const std::pair<const char*, const char*> grammars[] = {
      {"json", R"({"type":"array","items":{"enum":["name",12,true]}})"},
      {"regex", "(ab?c*)+"},
      {"ebnf", "root ::= \"(\" root \")\" | \"12\""}};
  for (auto [kind, schema] : grammars) {
    Matcher m = matcher(kind, schema);
    std::vector<std::vector<bool>> masks;
    for (int step = 0; step < 400; ++step) {
      std::vector<bool> now = allowed(m);
      masks.push_back(now);
      std::vector<int32_t> ids;
      for (size_t i = 0; i < now.size(); ++i) {
        if (now[i] && static_cast<int32_t>(i) != vocabulary().eos_id) ids.push_back(static_cast<int32_t>(i));
      }
      if (ids.empty() || rng() % 4 == 0) {
        int back = static_cast<int>(rng() % masks.size());
        m.rollback(back);
        masks.resize(masks.size() - static_cast<size_t>(back));
        EXPECT_EQ(allowed(m), masks.back()) << schema;
        masks.pop_back();
        continue;
      }
      auto refused = static_cast<int32_t>(rng() % now.size());
      if (!now[static_cast<size_t>(refused)]) {
        EXPECT_FALSE(m.accept(refused).value()) << schema << " token " << refused;
      }
      ASSERT_TRUE(m.accept(ids[rng() % ids.size()]).value()) << schema;
    }
  }
}

TEST(Matcher, TriggerStartsTheGrammar) {
  Trigger trigger({'a', 'b', 'a', 'c'}, std::nullopt);
  Matcher m = matcher("choice", R"(["z"])", trigger);
  ASSERT_TRUE(accepts_bytes(m, "xababa"));  // the end of one beginning is another one
  EXPECT_TRUE(m.is_free());
  EXPECT_TRUE(allowed(m)['q']);
  ASSERT_TRUE(accepts_bytes(m, "c"));
  EXPECT_FALSE(m.is_free());
  EXPECT_FALSE(allowed(m)['q']);
  m.rollback(2);
  EXPECT_TRUE(m.is_free());
  EXPECT_TRUE(accepts_bytes(m, "bacz"));
  EXPECT_TRUE(m.can_end());
}

TEST(Matcher, BoundTokenForcesTheTrigger) {
  Matcher m = matcher("choice", R"(["z"])", Trigger({'a', 'b'}, '!'));
  ASSERT_TRUE(accepts_bytes(m, "qa!"));
  EXPECT_THAT(m.likely_next(8), testing::ElementsAre('a', 'b'));
  EXPECT_FALSE(m.accept('b').value());
  std::vector<bool> now = allowed(m);
  EXPECT_EQ(std::count(now.begin(), now.end(), true), 1);
  EXPECT_TRUE(accepts_bytes(m, "abz"));
}

TEST(Matcher, ForcedTextIsFound) {
  Matcher m = matcher("json", R"({"type":"object","properties":{"name":{"const":true}},"required":["name"]})");
  ASSERT_TRUE(accepts_bytes(m, "{"));
  ASSERT_TRUE(accepts_bytes(m, "\""));
  std::vector<int32_t> likely = m.likely_next(8);
  ASSERT_FALSE(likely.empty());
  EXPECT_EQ(vocabulary().bytes[static_cast<size_t>(likely[0])], "name");
  for (int32_t id : likely) EXPECT_TRUE(m.accept(id).value());
}

TEST(Matcher, PrefixIsPartOfTheAnswer) {
  Matcher m = matcher("choice", R"(["abc"])");
  ASSERT_TRUE(m.accept_prefix("ab"));
  EXPECT_TRUE(accepts_bytes(m, "c"));
  EXPECT_TRUE(m.can_end());
  EXPECT_FALSE(matcher("choice", R"(["abc"])").accept_prefix("x"));
}

}  // namespace
}  // namespace deepinfer::grammar
