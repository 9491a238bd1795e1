// Answers that follow a grammar, through the whole engine: they parse, they are the same whatever else runs, and what
// is wrong with one request ends that request alone.

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/engine_impl.h"
#include "engine/grammar_setup.h"

namespace deepinfer::engine {
namespace {

const std::string kTiny = DI_SOURCE_DIR "/models/tiny";
const std::string kPerson =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,)"
    R"("maximum":120},"pets":{"type":"array","items":{"enum":["cat","dog","fox"]},"maxItems":3}},)"
    R"("required":["name","age","pets"]})";

std::unique_ptr<EngineImpl> make(EngineOptions options, const Settings& settings = {}) {
  options.model = kTiny;
  options.num_threads = 2;
  auto engine = EngineImpl::create(options, settings);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

EngineImpl& tiny() {
  static std::unique_ptr<EngineImpl> engine = make({});
  return *engine;
}

Request request(const EngineImpl& engine, const std::string& kind, const std::string& schema,
                std::optional<uint64_t> seed = std::nullopt, int max_tokens = 400) {
  Request r{.prompt = engine.encode("<｜begin▁of▁sentence｜>Once upon a time")};
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = seed ? 1.0 : 0.0;
  r.sampling.seed = seed;
  r.sampling.cache_mode = CacheMode::kOff;
  r.sampling.so_args = StructuredOutput{.schema_type = kind, .schema = schema};
  return r;
}

std::vector<CompletionOutput> run(EngineImpl& engine, std::vector<Request> requests) {
  std::vector<CompletionOutput> all;
  for (auto& output : engine.generate(std::move(requests), {}))
    std::move(output.outputs.begin(), output.outputs.end(), std::back_inserter(all));
  return all;
}

CompletionOutput run_alone(EngineImpl& engine, const Request& r) {
  return run(engine, {r})[0];
}

// Requests of every kind, greedy and seeded.
std::vector<Request> many(const EngineImpl& engine) {
  std::vector<Request> list;
  for (int i = 0; i < 12; ++i) {
    std::optional<uint64_t> seed;
    if (i % 2 == 1) seed = static_cast<uint64_t>(i);
    constexpr const char* kKinds[][2] = {{"regex", "(one|two|three), [a-z]{3,8}!"},
                                         {"choice", R"(["the fox", "the dog", "the cat"])"},
                                         {"ebnf", "root ::= item{2,4}\nitem ::= \"- \" [a-z]{1,9} \"\\n\""}};
    list.push_back(i % 4 == 0 ? request(engine, "json", kPerson, seed)
                              : request(engine, kKinds[i % 3][0], kKinds[i % 3][1], seed));
  }
  return list;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<CompletionOutput>& outputs) {
  std::vector<std::vector<int32_t>> all;
  for (const auto& c : outputs) {
    EXPECT_EQ(c.error, "");
    EXPECT_EQ(c.finish_reason, FinishReason::kStop) << c.text;
    all.push_back(c.token_ids);
  }
  return all;
}

const std::vector<std::vector<int32_t>>& many_alone() {
  static const std::vector<std::vector<int32_t>> expected = [] {
    auto engine = make({.max_num_seqs = 1, .num_drafts = 0});
    return tokens_of(run(*engine, many(*engine)));
  }();
  return expected;
}

// ---- what comes out -------------------------------------------------------------------------------------------------

TEST(StructuredOutput, JsonHasTheDeclaredShape) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    CompletionOutput c = run_alone(tiny(), request(tiny(), "json", kPerson, seed));
    ASSERT_EQ(c.finish_reason, FinishReason::kStop) << c.error << c.text;
    auto parsed = json::parse(c.text);
    ASSERT_TRUE(parsed) << c.text;
    EXPECT_EQ(parsed->as_object().size(), 3u);
    EXPECT_LE(parsed->at("age").as_int64(), 120);
    EXPECT_LE(parsed->at("pets").as_array().size(), 3u);
  }
}

TEST(StructuredOutput, TokensDoNotDependOnDraftsOrNeighbours) {
  EXPECT_EQ(tokens_of(run(tiny(), many(tiny()))), many_alone());
  EXPECT_GT(tiny().stats().accepted_tokens, 0);
}

// With log-probabilities, every token has its row.
TEST(StructuredOutput, AnEndThatMustComeNeedsNoStep) {
  for (int num_drafts : {0, -1}) {
    auto engine = make({.num_drafts = num_drafts});
    std::vector<Request> requests = many(*engine);
    auto short_cut = run(*engine, requests);
    for (Request& r : requests) r.sampling.logprobs = true;
    auto whole = run(*engine, requests);
    EXPECT_EQ(tokens_of(short_cut), many_alone());
    EXPECT_EQ(tokens_of(whole), many_alone());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(whole[i].logprobs.size(), whole[i].token_ids.size());
      // How many drafts a step verifies is chosen by measured times; the list of items could go on.
      if (num_drafts != 0 || requests[i].sampling.so_args->schema_type == "ebnf") continue;
      EXPECT_EQ(short_cut[i].usage.steps + 1, whole[i].usage.steps) << whole[i].text;
    }
    EXPECT_EQ(engine->stats().accepted_tokens > 0, num_drafts != 0);
  }
}

// One place to run: a request of higher priority takes it from one that is in the middle of its grammar.
TEST(StructuredOutput, ResumedSequencesGoOnInTheirGrammar) {
  auto engine = make({.max_num_seqs = 1});
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int32_t> tokens;
  bool has_ended = false;
  Request slow = request(*engine, "regex", "([a-z] ){60}end", 3);
  ASSERT_TRUE(engine->submit(slow, [&](const TokenEvent& e) {
    std::lock_guard lock(mutex);
    if (e.token >= 0) tokens.push_back(e.token);
    has_ended = e.finish_reason == FinishReason::kStop;
    changed.notify_all();
  }));
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tokens.size() > 20; });
  }
  Request urgent = request(*engine, "choice", R"(["now"])");
  urgent.sampling.priority = 10;
  EXPECT_EQ(run_alone(*engine, urgent).text, "now");
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return has_ended; }));
  EXPECT_EQ(engine->stats().preemptions, 1);
  EXPECT_EQ(tokens, run_alone(tiny(), slow).token_ids);
}

TEST(StructuredOutput, ChoicesFollowTheGrammarEachForItself) {
  Request r = request(tiny(), "json", kPerson, 7);
  r.sampling.n = 3;
  auto choices = run(tiny(), {r});
  ASSERT_EQ(choices.size(), 3u);
  for (const auto& c : choices) EXPECT_TRUE(json::parse(c.text)) << c.text;
  EXPECT_NE(choices[0].text, choices[1].text);
}

TEST(StructuredOutput, SampledVerificationKeepsToTheGrammar) {
  Request r = request(tiny(), "json", kPerson);
  r.sampling.temperature = 1.5;  // no seed: the drafts' laws are stored and verified as a block
  for (int i = 0; i < 6; ++i) {
    CompletionOutput c = run_alone(tiny(), r);
    EXPECT_TRUE(json::parse(c.text)) << c.text << c.error;
  }
}

TEST(StructuredOutput, TriggerAndBoundToken) {
  std::vector<int32_t> marker = tiny().encode("\n=>");
  Request r = request(tiny(), "choice", R"([" yes", " no"])", 3);
  r.sampling.so_args->trigger_token_ids = marker;
  r.sampling.so_args->bound_token_id = tiny().encode(".")[0];
  CompletionOutput c = run_alone(tiny(), r);
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_THAT(c.text, testing::MatchesRegex("[^.]*\\.\n=> (yes|no)")) << c.text;
}

TEST(StructuredOutput, PrefixIsContinued) {
  Request r = request(tiny(), "json", kPerson);
  r.sampling.so_args->prefix = R"({"name": "Lily", "age")";
  std::vector<int32_t> prefix = tiny().encode(r.sampling.so_args->prefix);
  r.prompt.insert(r.prompt.end(), prefix.begin(), prefix.end());
  CompletionOutput c = run_alone(tiny(), r);
  EXPECT_TRUE(json::parse(r.sampling.so_args->prefix + c.text)) << c.text;
  r.sampling.so_args->prefix = "[1";
  EXPECT_THAT(run_alone(tiny(), r).error, testing::HasSubstr("so_args.prefix"));
}

TEST(StructuredOutput, ReasoningIsFreeAndTheAnswerIsNot) {
  auto body = text::parse_chat_request(
      R"({"messages":[{"role":"user","content":"Say hi in JSON"}],"thinking":{"type":"enabled"},)"
      R"("response_format":{"type":"json_object"}})");
  ASSERT_TRUE(body) << body.error().message;
  text::ChatPrompt prompt = text::render_chat(*body);
  ASSERT_EQ(prompt.output.start, text::OutputFormat::Start::kReasoning);
  auto constraint = chat_constraint(*body, prompt);
  ASSERT_TRUE(constraint && *constraint);
  Request r{.prompt = *text::encode_prompt(tiny().tokenizer(), prompt)};
  r.sampling.temperature = 1.0;
  r.sampling.seed = 5;
  r.sampling.max_tokens = 400;
  r.sampling.so_args = **constraint;
  r.sampling.logit_bias = {{*tiny().tokenizer().added_id("</think>"), 8.0f}};
  CompletionOutput c = run_alone(tiny(), r);
  ASSERT_EQ(c.finish_reason, FinishReason::kStop) << c.text << c.error;
  size_t end = c.text.find("</think>");
  ASSERT_NE(end, std::string::npos) << c.text;
  EXPECT_TRUE(json::parse(c.text.substr(end + 8))) << c.text;
}

// ---- the cases of the tool-call grammar
// --------------------------------------------------------------------------------

struct CaseSet {
  grammar::ToolRules rules;
  json::array tools;
};

CaseSet read_set(const json::value& set) {
  using Choice = grammar::ToolRules::Choice;
  CaseSet out;
  const json::value& choice = set.at("tool_choice");
  out.rules.is_single_call = !set.at("parallel_tool_calls").as_bool();
  out.tools = set.at("tools").as_array();
  if (choice.is_object()) {
    out.rules.choice = Choice::kRequired;
    out.rules.is_single_call = true;
    const auto& name = choice.at("function").at("name");
    json::array named;
    for (const json::value& t : out.tools) {
      if (t.at("function").at("name") == name) named.push_back(t);
    }
    out.tools = std::move(named);
  } else {
    out.rules.choice = choice == "auto" ? Choice::kAuto : choice == "none" ? Choice::kNone : Choice::kRequired;
  }
  return out;
}

TEST(StructuredOutput, ToolCallCases) {
  auto file = json::parse_file(DI_SOURCE_DIR "/tests/golden/cases/grammar_cases.json");
  ASSERT_TRUE(file) << file.error().message;
  auto tokenizer = text::Tokenizer::load(kTiny);
  ASSERT_TRUE(tokenizer);
  grammar::Compiler compiler([&] { return grammar_vocabulary(*tokenizer, tokenizer->num_ids(), 1); },
                             {.num_threads = 1});
  int num_strings = 0;
  for (const json::value& set : file->at("sets").as_array()) {
    CaseSet cases = read_set(set);
    auto format = grammar::tool_call_format(json::dump(cases.tools), cases.rules);
    ASSERT_TRUE(format) << format.error().message;
    std::string tag = grammar::tag_of(set.at("reasoning").as_bool() ? grammar::after_reasoning(*format) : *format);
    std::shared_ptr<const grammar::Grammar> grammar;
    std::mutex mutex;
    std::condition_variable ready;
    compiler.compile(*grammar::make_structural_tag({.schema_type = "structural_tag", .schema = tag}),
                     grammar::Compiler::Clock::time_point::max(), [&](auto result) {
                       ASSERT_TRUE(result) << result.error().message;
                       std::lock_guard lock(mutex);
                       grammar = *result;
                       ready.notify_one();
                     });
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return grammar != nullptr; });
    for (const json::value& c : set.at("strings").as_array()) {
      std::string text(c.at(0).as_string());
      std::vector<int32_t> ids, spelled;
      tokenizer->encode(text, ids);
      tokenizer->encode_plain(text, spelled);  // control tokens in pieces: the parser reads them alike
      for (const auto& tokens : {ids, spelled}) {
        grammar::Matcher m(grammar, {});
        bool accepted = std::all_of(tokens.begin(), tokens.end(), [&](int32_t id) { return m.accept(id).value(); });
        EXPECT_EQ(accepted && m.can_end(), c.at(1).as_bool())
            << std::string(set.at("name").as_string()) << ": " << text;
      }
      ++num_strings;
    }
  }
  EXPECT_GT(num_strings, 40);
}

// ---- what goes wrong
// ----------------------------------------------------------------------------------------------------

TEST(StructuredOutput, BadSchemaFailsItsRequestAlone) {
  auto why = [&](const std::string& kind, const std::string& schema) {
    auto id = tiny().submit(request(tiny(), kind, schema), [](const TokenEvent&) { ADD_FAILURE(); });
    return id ? std::string() : id.failure().message;
  };
  EXPECT_THAT(why("json", "{"), testing::HasSubstr("so_args.schema: not valid JSON"));
  EXPECT_THAT(why("jsn", "{}"), testing::HasSubstr("so_args.schema_type is 'jsn'"));
  // Found by the compiler: the request is taken in and ends.
  Request bad = request(tiny(), "ebnf", "root ::= nothing");
  auto outputs = run(tiny(), {bad, request(tiny(), "choice", R"(["ok"])")});
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kError);
  EXPECT_TRUE(outputs[0].is_user_error);
  EXPECT_THAT(outputs[0].error, testing::HasSubstr("so_args.schema"));
  EXPECT_TRUE(outputs[0].token_ids.empty());
  EXPECT_EQ(outputs[1].text, "ok");
}

// Each schema is refused, or ends, within the limits (grammar/limits.h), and none changes or holds up what others get.
TEST(StructuredOutput, HostileSchemasDoNotTouchOthers) {
  std::string deep = R"({"type":"null"})";
  for (int i = 0; i < 2000; ++i) deep = R"({"type":"array","items":)" + deep + '}';
  const std::tuple<const char*, std::string, const char*> refused[] = {
      {"regex", "((a{1,64}){1,64}){1,64}", "so_args.schema: a part is repeated 262144 times in all, the limit is 4096"},
      {"regex", std::string(5000, '(') + std::string(5000, ')'), "so_args.schema: brackets are nested more than 64"},
      {"json", deep, "so_args.schema: not valid JSON at byte 1536: nested more than 64 deep"},
      {"json", "\"" + std::string(10 << 20, 'x') + "\"", "so_args.schema has 10485762 bytes, the limit is 262144"},
      {"json", R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "#/$defs/b"},
      {"ebnf", "root ::= root", "the grammar and the banned ids leave no token"},
  };
  const std::pair<const char*, std::string> endless[] = {
      {"regex", "((a+)+)+b"},
      {"regex", "[ab]*a[ab]{4000}"},
      {"regex", "((a?){64}){64}b"},
      {"ebnf", "root ::= root root | \"a\" | \"\""},
      {"json", R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":99999}}})"},
      {"json", R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/b"},"minItems":2},)"
               R"("b":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":2}}})"},
  };
  auto engine = make({});
  auto others = std::async(std::launch::async, [&] { return tokens_of(run(*engine, many(*engine))); });
  do {
    for (const auto& [kind, schema, expected] : refused) {
      CompletionOutput c = run_alone(*engine, request(*engine, kind, schema));
      EXPECT_EQ(c.finish_reason, FinishReason::kError) << kind << " " << schema.substr(0, 100);
      EXPECT_TRUE(c.is_user_error);
      EXPECT_THAT(c.error, testing::HasSubstr(expected)) << kind << " " << schema.substr(0, 100);
    }
    for (const auto& [kind, schema] : endless) {
      CompletionOutput c = run_alone(*engine, request(*engine, kind, schema, 1, 20));
      EXPECT_TRUE(c.finish_reason == FinishReason::kStop || c.finish_reason == FinishReason::kLength)
          << kind << " " << schema << ": " << c.error;
    }
  } while (others.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  EXPECT_EQ(others.get(), many_alone());
}

TEST(StructuredOutput, NoAllowedTokenIsAnError) {
  Request r = request(tiny(), "choice", R"(["q"])");
  r.sampling.bad_words = {tiny().encode("q")};
  CompletionOutput c = run_alone(tiny(), r);
  EXPECT_EQ(c.finish_reason, FinishReason::kError);
  EXPECT_NE(c.error, "");
}

TEST(StructuredOutput, EndsOnceWhileItIsCompiled) {
  for (bool closes : {false, true}) {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, int> ends;
    auto engine = make({});
    for (int i = 0; i < 8; ++i) {
      // Each grammar is new, so each has to be compiled.
      Request r = request(*engine, "regex", "a{" + std::to_string(500 + i) + "}b?c");
      r.sampling.n = 2;
      auto id = engine->submit(r, [&, i](const TokenEvent& e) {
        if (e.finish_reason == FinishReason::kNone) return;
        std::lock_guard lock(mutex);
        ends[i] += 1;
        changed.notify_all();
      });
      ASSERT_TRUE(id);
      if (!closes) engine->cancel(*id);
    }
    if (closes) engine.reset();
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] {
      return ends.size() == 8 && std::all_of(ends.begin(), ends.end(), [](auto& e) { return e.second == 2; });
    }));
    lock.unlock();
    engine.reset();
  }
}

TEST(StructuredOutput, CompileDeadlineIsTheSettings) {
  Settings settings;
  settings.grammar_timeout_s = 1e-9;
  auto engine = make({}, settings);
  CompletionOutput c = run_alone(*engine, request(*engine, "json", kPerson));
  EXPECT_EQ(c.finish_reason, FinishReason::kError);
  EXPECT_THAT(c.error, testing::HasSubstr("not compiled in time"));
}

}  // namespace
}  // namespace deepinfer::engine
