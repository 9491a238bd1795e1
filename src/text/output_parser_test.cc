#include "text/output_parser.h"

#include <random>

#include "text/test_files.h"

namespace deepinfer::text {
namespace {

OutputFormat format_of(JsonValue options) {
  using Start = OutputFormat::Start;
  OutputFormat format;
  std::string_view stage = options.find("stage").text();
  if (stage == "reasoning_start") format.start = Start::kReasoning;
  if (stage == "reasoning_continuation") format.start = Start::kReasoningContinuation;
  if (stage == "content_continuation") format.start = Start::kTextContinuation;
  if (options.find("starts_in_tool_calls").is_true()) format.start = Start::kCalls;
  format.parses_tool_calls = options.find("parse_tool_calls").is_true();
  format.is_json = options.find("json_output").is_true();
  for (JsonValue stop : options.find("stop")) format.stops.emplace_back(stop.text());
  return format;
}

std::string reason_of(JsonValue options) {
  std::string reason(options.find("finish").text());
  return reason == "contentfilter" ? "content_filter" : reason;
}

void expect_same(const ParsedOutput& output, JsonValue expected) {
  JsonValue reasoning = expected.find("reasoning_content");
  EXPECT_EQ(output.reasoning.has_value(), reasoning.is_given());
  EXPECT_EQ(output.reasoning.value_or(""), reasoning.text());
  EXPECT_EQ(output.content, expected.find("content").text());
  EXPECT_EQ(output.finish_reason, expected.find("finish_reason").text());
  JsonValue calls = expected.find("tool_calls");
  ASSERT_EQ(static_cast<int>(output.calls.size()), calls.size());
  std::size_t i = 0;
  for (JsonValue call : calls) {
    EXPECT_EQ(output.calls[i].name, (*call.begin()).text());
    EXPECT_EQ(output.calls[i].arguments, (*++call.begin()).text());
    ++i;
  }
}

// Deltas of a text fed in pieces that end at the given offsets.
std::vector<OutputDelta> fed(std::string_view text, const OutputFormat& format, const std::vector<std::size_t>& cuts) {
  OutputParser parser(format);
  std::vector<OutputDelta> deltas;
  std::size_t from = 0;
  for (std::size_t cut : cuts) {
    parser.push(text.substr(from, cut - from), deltas);
    from = cut;
  }
  parser.push(text.substr(from), deltas);
  parser.finish(deltas);
  return deltas;
}

TEST(OutputParser, ParsesEveryCase) {
  int num_cases = 0;
  for (JsonValue c : case_file("parse_cases").root().find("cases")) {
    SCOPED_TRACE(c.find("name").text());
    ++num_cases;
    JsonValue expected = c.find("expect_engine").is_given() ? c.find("expect_engine") : c.find("expect");
    JsonValue options = c.find("options");
    expect_same(parse_output(c.find("text").text(), format_of(options), reason_of(options)), expected);
  }
  EXPECT_EQ(num_cases, 75);
}

// Deltas of one kind that follow each other are joined in fed(), so equal lists mean equal streams.
TEST(OutputParser, GivesTheSameForEverySplitOfEveryCase) {
  std::mt19937 random(11);
  for (JsonValue c : case_file("parse_cases").root().find("cases")) {
    SCOPED_TRACE(c.find("name").text());
    std::string_view text = c.find("text").text();
    OutputFormat format = format_of(c.find("options"));
    std::vector<OutputDelta> whole = fed(text, format, {});
    for (std::size_t cut = 0; cut <= text.size(); ++cut) EXPECT_EQ(fed(text, format, {cut}), whole) << cut;
    std::vector<std::size_t> every;
    for (std::size_t cut = 1; cut < text.size(); ++cut) every.push_back(cut);
    EXPECT_EQ(fed(text, format, every), whole);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::size_t> some;
      for (std::size_t cut = 1; cut < text.size(); ++cut) {
        if (random() % 4 == 0) some.push_back(cut);
      }
      EXPECT_EQ(fed(text, format, some), whole);
    }
  }
}

// The reference's stream of a text fed by code point, neighbours joined, where the engine means the same message.
TEST(OutputParser, StreamsTheSameDeltasAsTheReference) {
  int num_cases = 0;
  for (JsonValue c : case_file("parse_cases").root().find("cases")) {
    if (c.find("deltas_per_char").is_missing() || c.find("expect_engine").is_given()) continue;
    ++num_cases;
    std::vector<OutputDelta> expected;
    for (JsonValue delta : c.find("deltas_per_char")) {
      std::string_view kind = (*delta.begin()).text(), text = (*++delta.begin()).text();
      if (kind == "finish_reason" || text.empty()) continue;
      auto k = kind == "content" ? OutputDelta::Kind::kContent : OutputDelta::Kind::kReasoning;
      if (!expected.empty() && expected.back().kind == k) {
        expected.back().text += text;
      } else {
        expected.push_back({.kind = k, .text = std::string(text)});
      }
    }
    EXPECT_EQ(fed(c.find("text").text(), format_of(c.find("options")), {}), expected) << c.find("name").text();
  }
  EXPECT_GE(num_cases, 30);
}

TEST(OutputParser, GivesOutTextAsSoonAsItIsCertain) {
  OutputParser parser({.start = OutputFormat::Start::kReasoning, .parses_tool_calls = true, .stops = {"STOP"}});
  auto push = [&](std::string_view text) {
    std::vector<OutputDelta> deltas;
    parser.push(text, deltas);
    return deltas.empty() ? std::string() : deltas.back().text;
  };
  EXPECT_EQ(push("a"), "a");
  EXPECT_EQ(push("\n"), "");
  EXPECT_EQ(push("b</thi"), "\nb");
  EXPECT_EQ(push("s"), "</this");
  EXPECT_EQ(push("</think>c ST"), "c ");
  EXPECT_EQ(push("UP ST"), "STUP ");
  EXPECT_EQ(push("OPx"), "");
  EXPECT_TRUE(parser.is_done());
  EXPECT_EQ(parser.stop_index(), 0);
}

TEST(OutputParser, StringValuesStreamAndOthersWait) {
  OutputParser parser({.start = OutputFormat::Start::kCalls, .parses_tool_calls = true});
  std::vector<OutputDelta> deltas;
  parser.push("<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x\"", deltas);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[1].text, "{\"a\": \"x\\\"");
  deltas.clear();
  parser.push("</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"b\" string=\"false\">[1", deltas);
  EXPECT_EQ(deltas.back().text, "\", \"b\": ");
  deltas.clear();
  parser.push("]</｜DSML｜", deltas);
  EXPECT_EQ(deltas.back().text, "[1]");
}

TEST(OutputParser, ClosesTheMessageWithTheBlockEvenIfAnInvokeIsOpen) {
  OutputFormat format{.start = OutputFormat::Start::kCalls, .parses_tool_calls = true};
  ParsedOutput output = parse_output(
      "<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ calls>\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>", format);
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].arguments, "{}");
}

// Whatever comes, arguments of a call whose tag was closed are JSON.
TEST(OutputParser, ClosedArgumentsAreAlwaysJson) {
  const std::vector<std::string> words = {"<｜DSML｜ parameter name=\"",
                                          "\" string=\"true\">",
                                          "\" string=\"false\">",
                                          "\">",
                                          "a",
                                          "\"",
                                          "</｜DSML｜ parameter>",
                                          "{",
                                          "}",
                                          "1",
                                          "null",
                                          "<",
                                          "\n",
                                          "\\",
                                          "string="};
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string text = "<｜DSML｜ invoke name=\"f\">";
    for (int i = 0; i < 14; ++i) text += words[random() % words.size()];
    text += "\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke></｜DSML｜ calls>";
    OutputFormat format{.start = OutputFormat::Start::kCalls, .parses_tool_calls = true};
    OutputParser parser(format);
    std::vector<OutputDelta> deltas;
    parser.push(text, deltas);
    if (!parser.is_done()) continue;
    ParsedOutput output;
    for (const auto& d : deltas) output.add(d);
    for (const auto& call : output.calls) EXPECT_TRUE(is_json(call.arguments)) << text << "\n" << call.arguments;
  }
}

// Megabytes that make a quadratic parser stand still, one byte at a time.
TEST(OutputParser, TakesHostileMegabytesByteByByte) {
  std::string calls = "<｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"";
  std::vector<std::string> texts = {std::string(1 << 20, '\n') + "x" + std::string(1 << 20, '\n'),
                                    std::string(1 << 20, '<'), calls + std::string(1 << 20, '"'),
                                    calls + "k\" string=\"false\">" + std::string(1 << 20, '<'),
                                    calls + "k\" string=\"true\">" + std::string(1 << 20, '"')};
  for (const std::string& text : texts) {
    OutputParser parser(
        {.start = text[0] == '<' && text[1] != '<' ? OutputFormat::Start::kCalls : OutputFormat::Start::kText,
         .parses_tool_calls = true,
         .stops = {std::string(1000, 'a') + "b", "ab"}});
    std::vector<OutputDelta> deltas;
    for (char c : text) parser.push({&c, 1}, deltas);
    parser.finish(deltas);
    EXPECT_LE(deltas.size(), 2u);
  }
}

TEST(StopStrings, TheMatchThatEndsFirstWinsAndOfThoseTheLongest) {
  auto run = [](std::vector<std::string> stops, std::string_view text, int expected) {
    std::string whole, bytes;
    StopStrings a(stops), b(stops);
    a.push(text, whole);
    a.finish(whole);
    for (char c : text) b.push({&c, 1}, bytes);
    b.finish(bytes);
    EXPECT_EQ(whole, bytes);
    EXPECT_EQ(a.found().value_or(-1), expected);
    EXPECT_EQ(a.found(), b.found());
    return whole;
  };
  EXPECT_EQ(run({"abd", "cab"}, "xabcab y", 1), "xab");
  EXPECT_EQ(run({"b", "ab"}, "xab", 1), "x");
  EXPECT_EQ(run({"aab"}, "aaaab", 0), "aa");
  EXPECT_EQ(run({"", "q"}, "aaq", 1), "aa");
  EXPECT_EQ(run({"abc"}, "ab", -1), "ab");
  EXPECT_EQ(run({}, "ab", -1), "ab");
}

TEST(CallId, HasTheIndexAndTwentyLetters) {
  std::string id = make_call_id(3, 0x123456789ABCDEF0, ~uint64_t{0});
  EXPECT_EQ(id.size(), 28u);
  EXPECT_TRUE(id.starts_with("call_03_"));
  EXPECT_NE(id, make_call_id(3, 1, 2));
}

}  // namespace
}  // namespace deepinfer::text
