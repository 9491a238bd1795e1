#include "text/chat.h"

#include <gmock/gmock.h>

#include "text/test_files.h"

namespace deepinfer::text {
namespace {

std::string body_of(JsonValue c) {
  std::string body;
  append_json(c.find("request"), JsonStyle::kCompact, body);
  return body;
}

OutputFormat::Start start_of(JsonValue parse) {
  using Start = OutputFormat::Start;
  if (parse.find("starts_in_tool_calls").is_true()) return Start::kCalls;
  std::string_view stage = parse.find("stage").text();
  if (stage == "reasoning_start") return Start::kReasoning;
  if (stage == "reasoning_continuation") return Start::kReasoningContinuation;
  return stage == "content_continuation" ? Start::kTextContinuation : Start::kText;
}

std::string_view kind_name(OutputConstraint::Kind kind) {
  using Kind = OutputConstraint::Kind;
  switch (kind) {
    case Kind::kNone:
      return "";
    case Kind::kJson:
      return "json";
    case Kind::kRegex:
      return "regex";
    case Kind::kToolCall:
      return "tool_call";
    case Kind::kToolCallRequired:
      return "tool_call_required";
  }
  return "?";
}

TEST(Chat, RendersEveryCaseAsTheReferenceDoes) {
  int num_cases = 0;
  for (JsonValue c : case_file("encoding_cases").root().find("cases")) {
    SCOPED_TRACE(c.find("name").text());
    ++num_cases;
    auto request = parse_chat_request(body_of(c), {.is_official = true});
    ASSERT_TRUE(request) << request.error().message;
    ChatPrompt prompt = render_chat(*request);
    EXPECT_EQ(prompt.text, c.find("prompt").text());
    std::vector<ByteRange> special;
    for (JsonValue range : c.find("special")) {
      auto ends = to_ids(range);
      special.push_back({ends[0], ends[1]});
    }
    EXPECT_EQ(prompt.special, special);
    auto ids = encode_prompt(released_tokenizer(), prompt);
    ASSERT_TRUE(ids);
    EXPECT_EQ(*ids, to_ids(c.find("ids")));

    JsonValue parse = c.find("parse");
    EXPECT_EQ(prompt.output.start, start_of(parse));
    EXPECT_EQ(prompt.output.parses_tool_calls, parse.find("parse_tool_calls").is_true());
    EXPECT_EQ(prompt.output.is_json, parse.find("json_output").is_true());
    EXPECT_EQ(kind_name(prompt.constraint.kind), c.find("constraint").find("kind").text());
    EXPECT_EQ(prompt.constraint.schema, c.find("constraint").find("schema").text());
  }
  EXPECT_EQ(num_cases, 94);
}

TEST(Chat, MatchesControlTokensInUserTextOnlyWhenAskedTo) {
  for (JsonValue c : case_file("encoding_cases").root().find("cases")) {
    if (c.find("ids_if_added_tokens_are_matched_in_user_text").is_missing()) continue;
    std::vector<int32_t> ids;
    released_tokenizer().encode(c.find("prompt").text(), ids);
    EXPECT_EQ(ids, to_ids(c.find("ids_if_added_tokens_are_matched_in_user_text"))) << c.find("name").text();
  }
}

TEST(Chat, RejectsWhatTheReferenceRejects) {
  int num_cases = 0;
  for (JsonValue c : case_file("encoding_cases").root().find("rejected")) {
    SCOPED_TRACE(c.find("name").text());
    ++num_cases;
    auto official = parse_chat_request(body_of(c), {.is_official = true});
    ASSERT_FALSE(official);
    EXPECT_EQ(official.error().code, Code::kInvalid);
    EXPECT_FALSE(official.error().message.empty());
    // Without the official policy the developer role is a system message; nothing else changes.
    EXPECT_EQ(parse_chat_request(body_of(c)).has_value(), c.find("name").text() == "developer_role");
  }
  EXPECT_EQ(num_cases, 19);
}

ChatPrompt rendered(const std::string& body, const ChatOptions& options = {}) {
  auto request = parse_chat_request(body);
  EXPECT_TRUE(request) << request.error().message;
  return request ? render_chat(*request, options) : ChatPrompt{};
}

TEST(Chat, TakesAWholeNumberAsEffortUnlessOfficial) {
  std::string body = R"({"messages": [{"role": "user", "content": "q"}], "reasoning_effort": 33})";
  EXPECT_THAT(rendered(body).text, testing::HasSubstr("Reasoning Effort: 33 (range"));
  EXPECT_FALSE(parse_chat_request(body, {.is_official = true}));
  EXPECT_FALSE(parse_chat_request(R"({"messages": [{"role": "user", "content": "q"}], "reasoning_effort": 101})"));
  EXPECT_FALSE(parse_chat_request(R"({"messages": [{"role": "user", "content": "q"}], "reasoning_effort": 1.5})"));
}

TEST(Chat, KeepsReasoningBehindToolResultsWhenTheOptionAsksForIt) {
  std::string body = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",
    "reasoning_content": "old"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "", "reasoning": "new",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "x"}]})";
  EXPECT_THAT(rendered(body).text, testing::Not(testing::HasSubstr("new")));
  std::string kept = rendered(body, {.tool_results_keep_reasoning = true}).text;
  EXPECT_THAT(kept, testing::HasSubstr("<think>new</think>"));
  EXPECT_THAT(kept, testing::Not(testing::HasSubstr("old")));
}

TEST(Chat, KeepsTheSpellingOfHugeIntegersAndPythonsOfFloats) {
  std::string body = R"({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function":
    {"name": "f", "parameters": {"a": 123456789012345678901234567890, "b": 1e16, "c": 1.5e-5, "d": 0.0001, "e": 123456.50,
     "f": 1E5, "g": -1e-7, "a": 1}}}]})";
  EXPECT_THAT(rendered(body).text,
              testing::HasSubstr(
                  R"({"a": 1, "b": 1e+16, "c": 1.5e-05, "d": 0.0001, "e": 123456.5, "f": 100000.0, "g": -1e-07})"));
  std::string huge = R"({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function":
    {"name": "f", "parameters": {"a": 123456789012345678901234567890}}}]})";
  EXPECT_THAT(rendered(huge).text, testing::HasSubstr(R"({"a": 123456789012345678901234567890})"));
}

TEST(Chat, WritesQuickTasks) {
  std::string body =
      R"({"messages": [{"role": "user", "content": "q", "task": "query"}], "thinking": {"type": "disabled"}})";
  EXPECT_EQ(rendered(body).text, "<｜begin▁of▁sentence｜><｜User｜>q<｜query｜>");
  body = R"({"messages": [{"role": "user", "content": "q", "task": "action"}, {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "r", "task": "title"}], "thinking": {"type": "disabled"}})";
  EXPECT_EQ(rendered(body).text,
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></"
            "think><｜action｜>yes<｜end▁of▁sentence｜><｜User｜>r<｜title｜>");
}

TEST(Chat, MarksEachMessage) {
  auto parts = [](const std::string& messages) {
    ChatPrompt prompt = rendered(R"({"thinking": {"type": "disabled"}, "messages": [)" + messages + "]}");
    std::vector<std::string> texts;
    for (ByteRange r : prompt.messages)
      texts.push_back(prompt.text.substr(static_cast<std::size_t>(r.begin), static_cast<std::size_t>(r.end - r.begin)));
    return texts;
  };
  using testing::ElementsAre;
  EXPECT_THAT(parts(R"({"role": "user", "content": "q"})"), ElementsAre("<｜User｜>q"));
  EXPECT_THAT(parts(R"({"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant",
                        "content": "a"}, {"role": "user", "content": "r"}, {"role": "user", "content": "t"})"),
              ElementsAre("<｜System｜>s", "<｜User｜>q", "<｜Assistant｜></think>a<｜end▁of▁sentence｜>",
                          "<｜User｜>r", "\n\nt"));
}

TEST(Chat, RendersCompletionsAndFillInTheMiddle) {
  EXPECT_EQ(render_completion("a<think>").text, "<｜begin▁of▁sentence｜>a<think>");
  EXPECT_EQ(render_completion("a", "b").text, "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>");
  const Tokenizer& t = released_tokenizer();
  EXPECT_EQ(encode_completion(t, "a<think>")->size(), 3u);
  EXPECT_GT(encode_completion(t, "a<think>", {}, false)->size(), 3u);
}

TEST(Chat, NamesAControlTokenThatTheTokenizerLacks) {
  auto fixture = Tokenizer::load(kFixtureTokenizer);
  ASSERT_TRUE(fixture);
  auto ids = encode_prompt(*fixture, rendered(R"({"messages": [{"role": "user", "content": "q"}]})"));
  ASSERT_FALSE(ids);
  EXPECT_THAT(ids.error().message, testing::HasSubstr("<｜System｜>"));
}

TEST(Chat, ErrorsNameTheMember) {
  auto message = [](const std::string& body) {
    auto request = parse_chat_request(body);
    return request ? std::string("accepted") : request.error().message;
  };
  EXPECT_THAT(message("{"), testing::HasSubstr("not valid JSON at byte 1"));
  EXPECT_THAT(message("[]"), testing::HasSubstr("must be a JSON object"));
  EXPECT_THAT(message(R"({"messages": [{"role": "user", "content": 3}]})"), testing::HasSubstr("messages[0].content"));
  EXPECT_THAT(message(R"({"messages": [{"role": "x", "content": ""}]})"), testing::HasSubstr("messages[0].role 'x'"));
  EXPECT_THAT(message(R"({"messages": [{"role": "user", "content": "\ud800"}]})"),
              testing::HasSubstr("lone surrogate"));
  EXPECT_THAT(message(R"({"messages": [{"role": "user", "content": [{"type": "video"}]}]})"),
              testing::HasSubstr("'video'"));
  EXPECT_THAT(message(R"({"messages": [{"role": "user", "content": ""}], "thinking": {"type": 1}})"),
              testing::HasSubstr("thinking.type"));
}

}  // namespace
}  // namespace deepinfer::text
