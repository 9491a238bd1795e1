// The service from request to answer, with an engine that says what it is told to and an exchange without a socket.

#include "serve/service.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "serve/endpoints.h"
#include "serve/json_writer.h"
#include "serve/testing/fake_exchange.h"
#include "serve/testing/null_engine.h"

namespace deepinfer::serve {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = *text::Tokenizer::load(DI_SOURCE_DIR "/models/tiny");
  return t;
}

class Fixture {
 public:
  explicit Fixture(NullEngine::Options engine = {}, ServeOptions options = quiet())
      : loop_(1), service(loop_, options, *AccessLog::open("off", false)), engine_(tokenizer(), std::move(engine)) {
    add_endpoints(service);
    loop_.every(std::chrono::milliseconds(1), [this] {
      auto is_over = [](const auto& e) { return e->is_over; };
      if (!pending_.empty() && std::all_of(pending_.begin(), pending_.end(), is_over)) {
        pending_.clear();
        loop_.stop();
      }
    });
    service.set_model({.engine = &engine_,
                       .tokenizer = &tokenizer(),
                       .name = "null",
                       .max_model_len = engine_.max_model_len(),
                       .vocab_size = tokenizer().num_ids(),
                       .end_think_id = tokenizer().added_id("</think>"),
                       .chat = {}});
  }
  static ServeOptions quiet() {
    ServeOptions o;
    o.access_log = "off";
    return o;
  }

  std::shared_ptr<FakeExchange> make(const std::string& method, const std::string& path, const std::string& body = "",
                                     net::Headers headers = {}) {
    return std::make_shared<FakeExchange>(net::HttpRequest{
        .method = method, .path = path, .headers = std::move(headers), .body = body, .peer = "192.0.2.1"});
  }
  // Runs the loop until all of these are answered, or stop() if there are none.
  void run(std::vector<std::shared_ptr<FakeExchange>> exchanges, std::function<void()> meanwhile = {}) {
    pending_ = exchanges;
    loop_.post([&] {
      for (auto& e : exchanges) service.dispatch(e);
      if (meanwhile) meanwhile();
    });
    loop_.run();
  }
  void stop() { loop_.stop(); }
  std::shared_ptr<FakeExchange> post(const std::string& path, const std::string& body) {
    auto e = make("POST", path, body);
    run({e});
    return e;
  }

 private:
  net::Loop loop_;

 public:
  Service service;

  NullEngine& engine() { return engine_; }

 private:
  NullEngine engine_;
  std::vector<std::shared_ptr<FakeExchange>> pending_;
};

NullEngine::Options saying(const std::string& text) {
  NullEngine::Options o;
  o.answer = [text](const Request&) { return text; };
  return o;
}

const std::string kChat = R"({"messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"})";

TEST(Service, AnswersAChat) {
  auto e = Fixture(saying("Good day.")).post("/v1/chat/completions", kChat + "}");
  EXPECT_EQ(e->status, 200);
  EXPECT_THAT(e->body, AllOf(HasSubstr(R"("content":"Good day.")"), HasSubstr(R"("finish_reason":"stop")")));
}

TEST(Service, AStreamEndsWithOneFinishReasonAndTheMark) {
  auto e = Fixture(saying("Good day.")).post("/v1/chat/completions", kChat + R"(, "stream": true, "n": 3})");
  EXPECT_EQ(e->status, 200);
  EXPECT_THAT(e->body, EndsWith("data: [DONE]\n\n"));
  std::size_t count = 0;
  for (std::size_t at = 0; (at = e->body.find("\"finish_reason\":\"stop\"", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 3u);
}

TEST(Service, ReasoningAndCallsAreApartInEveryApi) {
  const std::string written =
      "Let me see.</think>Well.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
      "string=\"false\">[1]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  Fixture f(saying(written));
  auto chat = f.post(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {"name": "f"}}]})");
  EXPECT_THAT(chat->body, AllOf(HasSubstr(R"("reasoning_content":"Let me see.")"), HasSubstr(R"("content":"Well.")"),
                                HasSubstr(R"("arguments":"{\"x\": [1]}")"),
                                HasSubstr(R"("finish_reason":"tool_calls")"), Not(HasSubstr("DSML"))));
  auto message = f.post("/v1/messages",
                        R"({"max_tokens": 500, "thinking": {"type": "enabled", "budget_tokens": 1024},
                            "messages": [{"role": "user", "content": "Hi"}],
                            "tools": [{"name": "f", "input_schema": {"type": "object"}}]})");
  EXPECT_THAT(message->body, AllOf(HasSubstr(R"("thinking":"Let me see.")"), HasSubstr(R"("text":"Well.")"),
                                   HasSubstr(R"("input":{"x": [1]})"), HasSubstr(R"("stop_reason":"tool_use")")));
  auto response = f.post("/v1/responses", R"({"input": "Hi", "tools": [{"type": "function", "name": "f"}]})");
  EXPECT_THAT(response->body,
              AllOf(HasSubstr(R"("type":"reasoning")"), HasSubstr(R"("type":"output_text","text":"Well.")"),
                    HasSubstr(R"("type":"function_call")"), HasSubstr(R"("status":"completed")")));
}

TEST(Service, AStopStringCutsTheTextAndTheEngine) {
  NullEngine::Options o = saying("one two three ");
  o.ends_by_itself = false;
  auto e = Fixture(o).post("/v1/chat/completions", kChat + R"(, "stop": ["thr"], "max_tokens": 4000})");
  EXPECT_THAT(e->body, AllOf(HasSubstr(R"("content":"one two ")"), HasSubstr(R"("finish_reason":"stop")")));
}

// The value of a sample of /metrics, named with its labels; -1: there is none.
double sample(Fixture& f, const std::string& name) {
  auto e = f.make("GET", "/metrics");
  f.run({e});
  const std::size_t at = e->body.find("\ndeepinfer_" + name + " ");
  return at == std::string::npos ? -1 : std::stod(e->body.substr(at + name.size() + 12));
}

TEST(Service, MetricsCountEachPromptOnceWithItsTimesAndMissCause) {
  NullEngine::Options o;
  o.usage = {.cached_tokens = 2,
             .replayed_tokens = 1,
             .from_stored_windows = true,
             .miss_cause = MissCause::kEvicted,
             .grammar_s = 0.25,
             .queue_s = 1.5,
             .prefill_s = 3.0};
  Fixture f(o);
  // Two prompts of three tokens, two choices each.
  auto e = f.post("/v1/completions", R"({"prompt": [[5, 6, 7], [8, 9, 10]], "n": 2, "timings": true})");
  EXPECT_THAT(e->body, HasSubstr(R"("timings":{"grammar_ms":250.000,"queue_ms":1500.000,"prefill_ms":3000.000,)"));
  EXPECT_EQ(sample(f, "queue_time_seconds_sum{stage=\"grammar\"}"), 0.5);
  EXPECT_EQ(sample(f, "queue_time_seconds_sum{stage=\"schedule\"}"), 3);
  EXPECT_EQ(sample(f, "queue_time_seconds_bucket{stage=\"schedule\",le=\"1\"}"), 0);
  EXPECT_EQ(sample(f, "queue_time_seconds_bucket{stage=\"schedule\",le=\"2.5\"}"), 2);
  EXPECT_EQ(sample(f, "prefill_time_seconds_sum"), 6);
  EXPECT_EQ(sample(f, "prompt_tokens_sum"), 6);
  EXPECT_EQ(sample(f, "prefix_queries_total"), 2);
  EXPECT_EQ(sample(f, "prefix_hits_total{windows=\"stored\"}"), 2);
  EXPECT_EQ(sample(f, "prefix_hits_total{windows=\"replayed\"}"), 0);
  EXPECT_EQ(sample(f, "miss_cause_total{cause=\"evicted\"}"), 2);
  EXPECT_EQ(sample(f, "miss_cause_total{cause=\"new\"}"), -1);
  EXPECT_EQ(sample(f, "prompt_tokens_by_source_total{source=\"computed\"}"), 2);
}

TEST(Service, MetricsShowWhatTheEngineCounts) {
  NullEngine::Options o;
  o.stats = {.accepted_tokens = 9,
             .drafted_by_position = {10, 7},
             .accepted_by_position = {6, 3},
             .evicted_blocks = 40,
             .evicted_windows = 4,
             .state_slots = 20,
             .state_slots_used = 5,
             .undrafted_steps = 11,
             .confidence_error = 0.125};
  Fixture f(o);
  for (int scrape = 0; scrape < 2; ++scrape) {  // sums are not added up again
    EXPECT_EQ(sample(f, "state_slots{state=\"used\"}"), 5);
    EXPECT_EQ(sample(f, "state_slots{state=\"free\"}"), 15);
    EXPECT_EQ(sample(f, "evictions_total{reason=\"capacity\",tier=\"device\"}"), 40);
    EXPECT_EQ(sample(f, "window_evictions_total"), 4);
    EXPECT_EQ(sample(f, "speculation_disabled_steps_total"), 11);
    EXPECT_EQ(sample(f, "confidence_calibration_error"), 0.125);
    EXPECT_EQ(sample(f, "draft_tokens_total{position=\"2\"}"), 7);
    EXPECT_EQ(sample(f, "accepted_tokens_total"), 9);
    EXPECT_EQ(sample(f, "accepted_at_position_total{position=\"1\"}"), 6);
  }
  EXPECT_EQ(sample(*std::make_unique<Fixture>(), "confidence_calibration_error"), -1) << "nothing drafts";
}

TEST(Service, ManyStreamsDoNotMix) {
  NullEngine::Options o;
  o.answer = [](const Request& r) { return "answer " + std::to_string(r.prompt.size()); };
  Fixture f(o);
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 1; i <= 50; ++i) {
    std::vector<int> ids(static_cast<std::size_t>(i), 5);
    all.push_back(f.make("POST", "/v1/completions", fmt::format(R"({{"prompt": [{}]}})", fmt::join(ids, ","))));
  }
  f.run(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_THAT(all[i]->body, HasSubstr(fmt::format("\"text\":\"answer {}\"", i + 1)));
}

TEST(Service, ADisconnectedClientFreesItsPlace) {
  NullEngine::Options o;
  o.ends_by_itself = false;
  o.step = std::chrono::milliseconds(1);
  Fixture f(o);
  auto gone = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 4000, "stream": true})");
  auto stays = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 20})");
  f.run({gone, stays}, [&] { gone->end(net::CloseReason::kPeer); });
  EXPECT_EQ(stays->status, 200);
  EXPECT_EQ(f.service.generations.num_active(), 0);
  EXPECT_EQ(f.service.admission.num_requests(), 0);
}

TEST(Service, CancellationByIdIsForTheOwnerAndEndsTheStreamWithAnError) {
  NullEngine::Options o;
  o.ends_by_itself = false;
  o.step = std::chrono::milliseconds(1);
  Fixture f(o);
  auto e = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 4000, "stream": true})",
                  {{"X-Request-Id", "mine"}});
  bool by_other = true, by_owner = false;
  f.run({e}, [&] {
    by_other = f.service.generations.cancel({.name = "other"}, "mine");
    by_owner = f.service.generations.cancel({}, "mine");
  });
  EXPECT_FALSE(by_other);
  EXPECT_TRUE(by_owner);
  EXPECT_EQ(e->status, 499);  // before the first token
  EXPECT_THAT(e->body, HasSubstr("cancelled"));
}

TEST(Service, ASilentStreamIsKeptAliveInTheWayOfItsApi) {
  NullEngine::Options o;
  o.step = std::chrono::milliseconds(1);
  Fixture f(o);
  auto chat = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2, "stream": true})");
  auto message = f.make("POST", "/v1/messages",
                        R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": true})");
  auto whole = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})");
  f.run({chat, message, whole}, [&] {
    auto now = net::Loop::Clock::now();
    f.service.generations.tick(now + std::chrono::seconds(5));  // not yet
    f.service.generations.tick(now + std::chrono::seconds(11));
  });
  EXPECT_THAT(chat->body, AllOf(StartsWith(": keep-alive\n\ndata: "), EndsWith("data: [DONE]\n\n")));
  EXPECT_THAT(message->body, HasSubstr("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
  EXPECT_THAT(whole->body, StartsWith("{"));
}

TEST(Service, KeysAreNeededWhereThereAreAny) {
  std::string path = testing::TempDir() + "/serve_keys";
  ASSERT_TRUE(write_file(path, "anna first-key\nroot second-key admin\n"));
  ServeOptions options = Fixture::quiet();
  options.keys_file = path;
  Fixture f({}, options);
  ASSERT_TRUE(f.service.load_keys());
  auto status = [&](net::Headers headers, const char* url = "/v1/models") {
    auto e = f.make("GET", url, "", std::move(headers));
    f.run({e});
    return e->status;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer wrong-key"}}), 401);
  EXPECT_EQ(status({{"Authorization", "bearer first-key"}}), 200);
  EXPECT_EQ(status({{"x-api-key", "first-key"}}), 200);
  EXPECT_EQ(status({}, "/health"), 200);
  EXPECT_EQ(status({}, "/v1/nothing"), 404);
}

TEST(Service, CorsIsForTheOriginsThatWereNamed) {
  ServeOptions options = Fixture::quiet();
  options.cors_origins = {"https://a.example"};
  Fixture f({}, options);
  auto good = f.make("OPTIONS", "/v1/models", "", {{"Origin", "https://a.example"}});
  auto bad = f.make("OPTIONS", "/v1/models", "", {{"Origin", "https://b.example"}});
  f.run({good, bad});
  EXPECT_EQ(good->status, 204);
  EXPECT_EQ(net::find_header(good->headers, "access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(bad->status, 405);
  EXPECT_EQ(net::find_header(bad->headers, "access-control-allow-origin"), "");
}

TEST(Service, LargeBodiesAreReadByAWorker) {
  std::string text(100'000, 'a');
  auto e = Fixture().post("/tokenize", R"({"prompt": ")" + text + "\"}");
  EXPECT_EQ(e->status, 200);
  EXPECT_THAT(e->body, StartsWith("{\"count\":"));
}

TEST(Service, UnderLoadItVerifiesFewerDraftsThenRefusesAndComesBack) {
  NullEngine::Options o;
  o.ends_by_itself = false;
  o.step = std::chrono::milliseconds(1);
  o.stats.drafted_by_position = o.stats.accepted_by_position = std::vector<int64_t>(5);
  ServeOptions options = Fixture::quiet();
  options.max_requests = 8;
  Fixture f(o, options);
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 0; i < 8; ++i)
    all.push_back(f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 4000})"));
  auto expect_rung = [&](int rung, int crowded_drafts) {
    f.service.observe_engine();
    auto scrape = f.make("GET", "/metrics");
    f.service.dispatch(scrape);
    EXPECT_THAT(scrape->body, HasSubstr(fmt::format("\ndeepinfer_overload_rung {}\n", rung)));
    EXPECT_EQ(f.engine().crowded_drafts, crowded_drafts);
  };
  auto dispatch = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) f.service.dispatch(all[i]);
  };
  auto ninth = f.make("POST", "/v1/completions", R"({"prompt": "a"})");
  f.run({}, [&] {
    dispatch(0, 3);
    expect_rung(0, 5);
    dispatch(3, 4);
    expect_rung(1, 3);
    dispatch(4, 6);
    expect_rung(2, 3);
    dispatch(6, 8);
    expect_rung(3, 3);
    f.service.dispatch(ninth);
    for (auto& e : all) e->end(net::CloseReason::kPeer);
    expect_rung(3, 3);  // the ninth was refused since the last look
    expect_rung(2, 3);
    expect_rung(1, 3);
    expect_rung(0, 5);
    f.stop();
  });
  EXPECT_EQ(ninth->status, 503);
}

TEST(Service, BatchesGiveTheirLinesBackUnderLoad) {
  NullEngine::Options o;
  o.ends_by_itself = false;
  o.step = std::chrono::milliseconds(1);
  Fixture f(o);
  std::string lines;
  for (int i = 0; i < 3; ++i) {
    lines += fmt::format(R"({{"custom_id": "{}", "method": "POST", "url": "/v1/completions",)"
                         R"( "body": {{"prompt": "a", "max_tokens": 4000}}}})"
                         "\n",
                         i);
  }
  auto file = f.service.files.add("", {.name = "in.jsonl", .purpose = "batch", .data = lines});
  ASSERT_TRUE(file);
  auto batch =
      f.post("/v1/batches", fmt::format(R"({{"input_file_id": "{}", "endpoint": "/v1/completions"}})", (*file)->id));
  ASSERT_THAT(batch->body, HasSubstr(R"("status":"in_progress")"));
  f.run({}, [&] {
    auto in_flight = [&] {
      f.service.batches.tick();
      return f.service.admission.num_requests();
    };
    EXPECT_EQ(in_flight(), 3);
    f.service.overload.update(0.6);
    EXPECT_EQ(in_flight(), 3);
    f.service.overload.update(0.8);
    EXPECT_EQ(in_flight(), 0);
    f.service.overload.update(0.5);
    EXPECT_EQ(in_flight(), 3);
    f.stop();
  });
}

TEST(Service, DrainingRefusesNewRequestsAndFinishesOldOnes) {
  NullEngine::Options o;
  o.ends_by_itself = false;
  o.step = std::chrono::milliseconds(1);
  Fixture f(o);
  auto old = f.make("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 30})");
  auto late = f.make("POST", "/v1/completions", R"({"prompt": "a"})");
  auto ready = f.make("GET", "/ready");
  bool is_drained = false;
  f.run({old}, [&] {
    f.service.drain(std::chrono::seconds(60), [&] { is_drained = true; });
    f.service.dispatch(late);
    f.service.dispatch(ready);
  });
  EXPECT_EQ(old->status, 200);
  EXPECT_EQ(late->status, 503);
  EXPECT_NE(net::find_header(late->headers, "retry-after"), "");
  EXPECT_EQ(ready->status, 503);
}

TEST(Service, AnErrorOfTheAnthropicApiHasItsForm) {
  auto e = Fixture().post("/v1/messages", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(e->status, 400);
  EXPECT_THAT(e->body,
              AllOf(HasSubstr(R"("type":"invalid_request_error")"), HasSubstr("max_tokens"), HasSubstr("request_id")));
}

TEST(Service, AResponseCanBeContinuedShownAndDeleted) {
  Fixture f(saying("Fine."));
  auto first = f.post("/v1/responses", R"({"input": "How are you?", "reasoning": {"effort": "none"}})");
  ASSERT_EQ(first->status, 200) << first->body;
  std::size_t at = first->body.find("\"id\":\"resp_");
  std::string id = first->body.substr(at + 6, 5 + 24);
  auto second = f.post("/v1/responses", R"({"input": "And now?", "previous_response_id": ")" + id + "\"}");
  EXPECT_EQ(second->status, 200) << second->body;
  auto shown = f.make("GET", "/v1/responses/" + id);
  auto deleted = f.make("DELETE", "/v1/responses/" + id);
  auto gone = f.make("GET", "/v1/responses/" + id);
  f.run({shown, deleted, gone});
  EXPECT_EQ(shown->body, first->body);
  EXPECT_EQ(deleted->status, 200);
  EXPECT_EQ(gone->status, 404);
}

// What a client makes of a call that it got: JSON written anew.
std::string second_turn(const std::string& id, const std::string& arguments) {
  JsonWriter w;
  w.value(arguments);
  return R"({"thinking": {"type": "disabled"}, "tools": [{"type": "function", "function": {"name": "f"}}], "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Well.", "tool_calls": [
              {"id": ")" +
         id + R"(", "type": "function", "function": {"name": "f", "arguments": )" + w.text() +
         R"(}}]}, {"role": "tool", "tool_call_id": ")" + id + R"(", "content": "done"}]})";
}

TEST(Service, ACallSentBackIsReadAsTheModelWroteIt) {
  // Spaces and numbers as no client would write them.
  const std::string written =
      "Well.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
      "string=\"false\">{\"b\":  [1,2.50],\"a\":null}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  std::vector<std::vector<int32_t>> prompts;
  NullEngine::Options o;
  o.answer = [&](const Request& r) {
    prompts.push_back(r.prompt);
    return written;
  };
  Fixture f(o);
  auto first = f.post("/v1/chat/completions",
                      R"({"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "Hi"}],
                          "tools": [{"type": "function", "function": {"name": "f"}}]})");
  ASSERT_EQ(first->status, 200) << first->body;
  std::string id = first->body.substr(first->body.find("call_00_"), 28);
  std::vector<int32_t> history = prompts[0];
  tokenizer().encode(written, history);
  auto begins_with_history = [&](const std::string& arguments) {
    auto e = f.post("/v1/chat/completions", second_turn(id, arguments));
    EXPECT_EQ(e->status, 200) << e->body;
    const auto& prompt = prompts.back();
    std::string shown = f.post("/render", second_turn(id, arguments))->body;
    EXPECT_THAT(shown, HasSubstr(fmt::format("\"tokens\":[{}]", fmt::join(prompt, ","))));
    return prompt.size() > history.size() && std::equal(history.begin(), history.end(), prompt.begin());
  };
  EXPECT_TRUE(begins_with_history(R"({"x": {"a": null, "b": [1, 2.5]}})"));
  EXPECT_FALSE(begins_with_history(R"({"x": {"a": null, "b": [1, 2.6]}})"));  // the client changed it: that counts
  EXPECT_FALSE(begins_with_history(R"({"x": {"a": null, "b": [1, 2.5]}, "y": 1})"));
}

TEST(SameJson, LooksAtMeaning) {
  EXPECT_TRUE(same_json(R"({"a": 1, "b": [true, "x\u0041"]})", R"({"b":[true,"xA"],"a":1})"));
  EXPECT_TRUE(same_json("1.0", "1e0"));
  EXPECT_FALSE(same_json("9007199254740993", "9007199254740992"));
  EXPECT_FALSE(same_json("[1, 2]", "[2, 1]"));
  EXPECT_FALSE(same_json(R"({"a": 1})", R"({"a": 1, "b": 1})"));
  EXPECT_FALSE(same_json(R"({"a": 1})", R"({"b": 1})"));
  EXPECT_FALSE(same_json("1", "\"1\""));
  EXPECT_FALSE(same_json("{", "{"));
}

TEST(Store, ForgetsByTimeAndBySize) {
  Store<std::string> store(std::chrono::seconds(10), 100);
  auto t0 = Store<std::string>::Clock::time_point();
  EXPECT_TRUE(store.put("a", "1", "one", 60, t0));
  EXPECT_FALSE(store.get("b", "1", t0));  // another tenant
  EXPECT_TRUE(store.put("a", "2", "two", 60, t0 + std::chrono::seconds(5)));
  EXPECT_FALSE(store.get("a", "1", t0 + std::chrono::seconds(5)));
  EXPECT_EQ(store.get("a", "2", t0 + std::chrono::seconds(14)), "two");
  EXPECT_FALSE(store.get("a", "2", t0 + std::chrono::seconds(15)));
  EXPECT_FALSE(store.put("a", "3", "three", 101, t0));
  EXPECT_EQ(store.bytes(), 0);
}

}  // namespace
}  // namespace deepinfer::serve
