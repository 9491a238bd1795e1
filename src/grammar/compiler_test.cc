#include "grammar/compiler.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/limits.h"
#include "grammar/testing/byte_vocabulary.h"

namespace deepinfer::grammar {
namespace {

std::string refusal(const std::string& kind, const std::string& schema) {
  static Compiler compiler([] { return byte_vocabulary(); }, {.num_threads = 1});
  auto grammar = compile_now(compiler, {.schema_type = kind, .schema = schema});
  return grammar ? "" : grammar.error().message;
}

TEST(Compiler, RefusalsNameTheFieldAndThePart) {
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"yaml", "x", "so_args.schema_type is 'yaml'; allowed: json,"},
      {"regex", "", "so_args.schema is empty"},
      {"json", "{", "so_args.schema: not valid JSON at byte 1"},
      {"json", "3", "so_args.schema: #: a schema is an object or a boolean"},
      {"json", R"({"type":"wish"})", "wish"},
      {"json", R"({"type":"object","properties":{"a":{"not":{}}}})",
       "#/properties/a: the keyword 'not' is not supported"},
      {"json", R"({"type":"array","items":true,"uniqueItems":true})", "'uniqueItems'"},
      {"json", R"({"anyOf":[{"type":"null"}],"type":"object"})", "'type' beside 'anyOf'"},
      {"json", R"({"enum":["a",1],"type":"string"})", "1 is not of the type beside it"},
      {"json", R"({"minimum":3})", "'minimum' needs 'type'"},
      {"json", R"({"type":"object","properties":{},"required":["a"]})", "'required' names 'a'"},
      {"json", R"({"type":"number","multipleOf":3})", "multipleOf"},
      {"json", R"({"allOf":[{"type":"number"},{"type":"integer"}]})", "allOf"},
      {"json", R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", "oneOf"},
      {"json", R"({"$ref":"https://example.org/schema"})", "URI"},
      {"json", R"({"$ref":"#/$defs/none"})", "$defs"},
      {"json", R"({"type":"integer","minimum":5,"maximum":4})", "range"},
      {"json", std::string(100, '[') + std::string(100, ']'),
       "so_args.schema: not valid JSON at byte 64: nested more than 64 deep"},
      {"json", "\"" + std::string(kMaxSchemaBytes, 'x') + "\"", "bytes, the limit is 262144"},
      {"json_object", "{}", "takes no schema"},
      {"regex", "(a", "so_args.schema:"},
      {"regex", "a(?=b)", "so_args.schema:"},
      {"regex", "((a{1,300}){1,300})", "repeated 90000 times in all, the limit is 4096"},
      {"regex", std::string(65, '(') + "a" + std::string(65, ')'), "nested more than 64 deep"},
      {"ebnf", "start ::= \"a\"", "root"},
      {"ebnf", "root ::= other", "so_args.schema:"},
      {"choice", "[]", "at least one string"},
      {"choice", "[1]", "lists 1"},
      {"structural_tag", "{}", "so_args.schema:"},
      {"structural_tag", R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":{"not":{}}}})",
       "'not'"},
  };
  for (const auto& [kind, schema, expected] : cases) {
    EXPECT_THAT(refusal(kind, schema), testing::HasSubstr(expected)) << kind << " " << schema.substr(0, 100);
  }
}

TEST(Compiler, TriggersAreChecked) {
  StructuredOutput s{.schema_type = "json"};
  s.bound_token_id = 3;
  EXPECT_THAT(check_structured_output(s, 10).error().message, testing::HasSubstr("needs trigger_token_ids"));
  s.trigger_token_ids = {10};
  EXPECT_THAT(check_structured_output(s, 10).error().message, testing::HasSubstr("outside the vocabulary of 10"));
  s.trigger_token_ids.assign(65, 1);
  EXPECT_THAT(check_structured_output(s, 10).error().message, testing::HasSubstr("65 entries, the limit is 64"));
}

TEST(Compiler, EqualTagsAreCompiledOnceAndKept) {
  Compiler compiler([] { return byte_vocabulary(); }, {.num_threads = 2});
  auto first = compile_now(compiler, {.schema_type = "regex", .schema = "ab*"});
  auto second = compile_now(compiler, {.schema_type = "regex", .schema = "ab*"});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->get(), second->get());
  EXPECT_EQ(compiler.cached_bytes(), (*first)->bytes());
}

TEST(Compiler, CacheForgetsTheOldestAtItsLimit) {
  Compiler probe([] { return byte_vocabulary(); }, {.num_threads = 1});
  int64_t one = compile_now(probe, {.schema_type = "regex", .schema = "a0"}).value()->bytes();
  Compiler compiler([] { return byte_vocabulary(); }, {.num_threads = 1, .cache_bytes = 3 * one + one / 2});
  std::vector<std::shared_ptr<const Grammar>> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(compile_now(compiler, {.schema_type = "regex", .schema = "a" + std::to_string(i)}).value());
  EXPECT_LE(compiler.cached_bytes(), 3 * one + one / 2);
  EXPECT_EQ(compile_now(compiler, {.schema_type = "regex", .schema = "a5"}).value(), all[5]);
  EXPECT_NE(compile_now(compiler, {.schema_type = "regex", .schema = "a0"}).value(), all[0]);
}

TEST(Compiler, LateAndClosedRequestsEndOnce) {
  std::atomic<int> late = 0, closed = 0;
  std::atomic<bool> is_open = false;
  std::thread opener;
  {
    Compiler compiler(
        [&] {
          while (!is_open) std::this_thread::yield();  // the first compilation hangs here
          return byte_vocabulary();
        },
        {.num_threads = 1});
    auto count = [&](auto result) {
      ASSERT_FALSE(result);
      if (result.error().code == Code::kDeadline) ++late;
      if (result.error().code == Code::kCancelled) ++closed;
    };
    StructuralTag a = make_structural_tag({.schema_type = "regex", .schema = "a"}).value();
    StructuralTag b = make_structural_tag({.schema_type = "regex", .schema = "b"}).value();
    auto soon = Compiler::Clock::now() + std::chrono::milliseconds(20);
    compiler.compile(a, soon, count);
    compiler.compile(b, soon, count);
    compiler.compile(b, Compiler::Clock::time_point::max(), count);
    while (late < 2) std::this_thread::yield();
    opener = std::thread([&] {
      while (closed < 1) std::this_thread::yield();
      is_open = true;
    });
  }
  opener.join();
  EXPECT_EQ(late, 2);
  EXPECT_EQ(closed, 1);
}

}  // namespace
}  // namespace deepinfer::grammar
