#include "serve/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/json_writer.h"

namespace deepinfer::serve {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct Sample {
  double heat = 1;
  std::optional<int64_t> count;
  std::optional<uint64_t> seed;
  bool is_on = false;
  std::string name;
};

const FieldTable<Sample>& table() {
  static const FieldTable<Sample> t = {
      number_of<Sample>("heat", &Sample::heat, 0, 2),      integer_of<Sample>("count", &Sample::count, 1, 10),
      integer_of<Sample>("seed", &Sample::seed, 0, ~0ull), boolean_of<Sample>("on", &Sample::is_on),
      string_of<Sample>("name", &Sample::name, 4),         ignored<Sample>("user"),
      refused<Sample>("audio", "it has no voice"),
  };
  return t;
}

ApiResult<Sample> read(const std::string& body, std::vector<std::string>* unknown = nullptr) {
  auto tree = text::JsonTree::parse(body);
  EXPECT_TRUE(tree) << body;
  Sample s;
  std::vector<std::string> names;
  DI_TRY_VOID(read_fields(tree->root(), table(), s, names));
  if (unknown != nullptr) *unknown = names;
  return s;
}

TEST(Fields, ReadsWhatIsAllowed) {
  auto s =
      read(R"({"heat": 2, "count": 10, "seed": 18446744073709551615, "on": true, "name": "Ünï", "user": {"a": 1}})");
  ASSERT_FALSE(s);  // the name has six bytes
  s = read(
      R"({"heat": 0.5e0, "count": 10, "seed": 18446744073709551615, "on": true, "name": "abcd", "user": {"a": 1}})");
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->heat, 0.5);
  EXPECT_EQ(s->count, 10);
  EXPECT_EQ(s->seed, ~0ull);
  EXPECT_TRUE(s->is_on);
  EXPECT_EQ(s->name, "abcd");
}

TEST(Fields, NullIsAbsentAndNeutralValuesAskForNothing) {
  auto s = read(R"({"heat": null, "count": null, "audio": null})");
  ASSERT_TRUE(s);
  EXPECT_EQ(s->heat, 1);
  for (const char* neutral : {"false", "0", "\"\"", "[]", "{}"}) {
    EXPECT_TRUE(read(fmt::format(R"({{"audio": {}}})", neutral))) << neutral;
  }
}

TEST(Fields, AnErrorNamesFieldValueAndLimit) {
  struct Case {
    const char *body, *param, *value, *limit;
  };
  for (auto [body, param, value, limit] :
       {Case{R"({"heat": 2.5})", "heat", "2.5", "0 to 2"}, Case{R"({"heat": "hot"})", "heat", "'hot'", "number"},
        Case{R"({"heat": 1e999})", "heat", "1e999", "0 to 2"}, Case{R"({"count": 0})", "count", "0", "1 to 10"},
        Case{R"({"count": 1.5})", "count", "1.5", "whole"}, Case{R"({"count": [1]})", "count", "a list of 1", "whole"},
        Case{R"({"seed": -1})", "seed", "-1", "whole"}, Case{R"({"on": 1})", "on", "1", "true or false"},
        Case{R"({"name": "abcde"})", "name", "5", "4"}, Case{R"({"name": {}})", "name", "an object", "string"},
        Case{R"({"audio": {"voice": "x"}})", "audio", "an object of 1", "no voice"}}) {
    auto s = read(body);
    ASSERT_FALSE(s) << body;
    EXPECT_EQ(s.error().status, 400);
    EXPECT_EQ(s.error().param, param);
    EXPECT_THAT(s.error().message, AllOf(HasSubstr(param), HasSubstr(value), HasSubstr(limit))) << body;
  }
}

TEST(Fields, UnknownOnesAreReported) {
  std::vector<std::string> unknown;
  ASSERT_TRUE(read(R"({"heat": 1, "colour": 1, "x\r\ny": 2})", &unknown));
  EXPECT_THAT(unknown, ElementsAre("colour", "x\r\ny"));
  EXPECT_EQ(unknown_fields_header(unknown), "colour, x??y");
  EXPECT_THAT(unknown_fields_header(std::vector<std::string>(100, "a")), HasSubstr("and 84 more"));
}

TEST(Fields, LongTextIsCutBetweenCharacters) {
  auto tree = text::JsonTree::parse("\"" + std::string(59, 'a') + "üüü\"");
  std::string said = describe(tree->root());
  EXPECT_THAT(said, HasSubstr("..."));
  EXPECT_EQ(said.find("\xC3'"), said.npos);
}

TEST(Fields, StringListsAndTokenIdsHaveLimits) {
  auto tree = text::JsonTree::parse(R"({"s": ["a", "b"], "one": "a", "empty": [""], "ids": [1, 2], "bad": [1, -2]})");
  JsonValue root = tree->root();
  EXPECT_THAT(*read_strings("s", root.find("s"), 2, 8), ElementsAre("a", "b"));
  EXPECT_THAT(*read_strings("s", root.find("one"), 2, 8), ElementsAre("a"));
  EXPECT_FALSE(read_strings("s", root.find("s"), 1, 8));
  EXPECT_FALSE(read_strings("s", root.find("empty"), 2, 8));
  EXPECT_THAT(*read_token_ids("ids", root.find("ids"), 2), ElementsAre(1, 2));
  EXPECT_EQ(read_token_ids("ids", root.find("bad"), 9).error().param, "ids[1]");
  EXPECT_FALSE(read_token_ids("ids", root.find("ids"), 1));
}

TEST(JsonWriter, PlacesCommasAndEscapes) {
  JsonWriter w;
  w.begin_object().field("a", 1).key("b").begin_array().value("x\"\n").value(true).null().end_array();
  w.key("c").begin_object().end_object().field("d", -1.5).field("e", INFINITY).end_object();
  EXPECT_EQ(w.text(), R"({"a":1,"b":["x\"\n",true,null],"c":{},"d":-1.5,"e":-9999.0})");
}

TEST(ApiError, TakesEachApisForm) {
  ApiError e{.status = 429, .message = "too \"many\"", .param = "n", .code = "c", .retry_after_s = 3};
  EXPECT_EQ(error_json(ApiStyle::kOpenAi, e, "r"),
            R"({"error":{"message":"too \"many\"","type":"rate_limit_error","param":"n","code":"c"}})");
  EXPECT_EQ(error_json(ApiStyle::kAnthropic, e, "r"),
            R"({"type":"error","error":{"type":"rate_limit_error","message":"too \"many\""},"request_id":"r"})");
  EXPECT_EQ(net::find_header(error_response(ApiStyle::kOpenAi, e, "r").headers, "retry-after"), "3");
}

TEST(ApiError, TheFieldOfAMessageBecomesItsParam) {
  EXPECT_EQ(invalid_request("messages[3].content must be a string").param, "messages[3].content");
  EXPECT_EQ(invalid_request("the request must be an object").param, "");
}

}  // namespace
}  // namespace deepinfer::serve
