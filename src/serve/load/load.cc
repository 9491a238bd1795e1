#include "serve/load/load.h"

#include <charconv>
#include <deque>
#include <memory>

#include <fmt/format.h>

#include "net/http_client.h"
#include "net/loop.h"
#include "serve/json_writer.h"
#include "serve/load/load_plan.h"
#include "serve/load/load_report.h"
#include "serve/load/sse_reader.h"
#include "text/json_tree.h"

namespace deepinfer::serve {
namespace {

using Clock = net::Loop::Clock;
using text::JsonValue;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The message of an error answer or event of either form.
std::string message_of(JsonValue body) {
  JsonValue error = body.find("error");
  std::string_view message = error.find("message").text();
  return std::string(message.empty() ? error.text() : message);
}

// One request: what its stream says, turned into times and counts.
class Exchange {
 public:
  Exchange(RequestOutcome& outcome, Clock::time_point begin) : outcome_(outcome), sent_(Clock::now()) {
    outcome_.start_s = std::chrono::duration<double>(sent_ - begin).count();
  }

  void on_head(int status) { outcome_.status = status; }
  void on_body(std::string_view bytes) {
    if (outcome_.status != 200) {
      error_body_ += bytes;
      return;
    }
    reader_.push(bytes, [this](std::string_view data) { on_data(data); });
  }
  void on_end(const std::optional<Error>& error) {
    double total = seconds_since(sent_);
    outcome_.e2el_s = error || outcome_.status != 200 || last_text_s_ == 0 ? total : last_text_s_;
    if (error) {
      outcome_.error = error->message;
    } else if (outcome_.status != 200) {
      auto tree = text::JsonTree::parse(error_body_);
      outcome_.error = fmt::format("HTTP {}: {}", outcome_.status, tree ? message_of(tree->root()) : "");
    } else if (outcome_.error.empty() && !(is_ended_ && reader_.is_between_events())) {
      outcome_.error = "the stream ended without [DONE]";
    } else if (outcome_.error.empty() && !has_finish_reason_) {
      outcome_.error = "the stream ended without a finish reason";
    }
    if (!has_usage_) outcome_.output_tokens = num_texts_;
  }

 private:
  void on_data(std::string_view data) {
    if (data == "[DONE]") {
      is_ended_ = true;
      return;
    }
    auto tree = text::JsonTree::parse(std::string(data));
    if (!tree) {
      outcome_.error = "an event is not JSON";
      return;
    }
    JsonValue root = tree->root();
    if (root.find("error").is_given()) outcome_.error = "error event: " + message_of(root);
    if (root.find("usage").is_object()) read_usage(root.find("usage"));
    for (JsonValue choice : root.find("choices")) on_choice(choice);
  }

  void on_choice(JsonValue choice) {
    JsonValue delta = choice.find("delta");
    bool has_text = !choice.find("text").text().empty();
    for (const char* name : {"content", "reasoning_content", "reasoning"}) has_text |= !delta.find(name).text().empty();
    has_text |= delta.find("tool_calls").size() > 0;
    if (has_text) on_text();
    has_finish_reason_ |= choice.find("finish_reason").is_given();
  }

  void on_text() {
    double now = seconds_since(sent_);
    if (num_texts_ == 0) {
      outcome_.ttft_s = now;
    } else {
      outcome_.itl_s.push_back(now - last_text_s_);
    }
    last_text_s_ = now;
    ++num_texts_;
  }

  void read_usage(JsonValue usage) {
    auto number = [&](const char* name, int64_t& out) {
      std::string_view text = usage.find(name).text();
      std::from_chars(text.data(), text.data() + text.size(), out);
    };
    number("prompt_tokens", outcome_.input_tokens);
    number("completion_tokens", outcome_.output_tokens);
    has_usage_ = true;
  }

  RequestOutcome& outcome_;
  Clock::time_point sent_;
  SseReader reader_;
  std::string error_body_;
  double last_text_s_ = 0;
  int64_t num_texts_ = 0;
  bool is_ended_ = false, has_finish_reason_ = false, has_usage_ = false;
};

class LoadRun {
 public:
  LoadRun(const LoadOptions& options, std::vector<PlannedRequest> plan)
      : options_(options), plan_(std::move(plan)), outcomes_(plan_.size()), loop_(1) {}

  Result<LoadResult> run() {
    DI_TRY(client_,
           net::HttpClient::create(loop_, options_.url, {.timeout = options_.timeout, .trusted = options_.trusted}));
    DI_TRY(model_, find_model());
    begin_ = Clock::now();
    schedule_next();
    loop_.run();
    return report_load(options_, model_, seconds_since(begin_), outcomes_);
  }

 private:
  net::Headers headers() const {
    net::Headers h = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
    if (!options_.api_key.empty()) h.push_back({"Authorization", "Bearer " + options_.api_key});
    return h;
  }

  // Asks the server for its models, which also shows that it is there.
  Result<std::string> find_model() {
    int status = 0;
    std::string body;
    std::optional<Error> error;
    client_->send({.method = "GET", .path = "/v1/models", .headers = headers()},
                  {.on_head = [&](int s, const net::Headers&) { status = s; },
                   .on_body = [&](std::string_view bytes) { body += bytes; },
                   .on_end =
                       [&](const std::optional<Error>& e) {
                         error = e;
                         loop_.stop();
                       }});
    loop_.run();
    if (error) return fail(Code::kInvalid, "{}/v1/models: {}", options_.url, error->message);
    if (!options_.model.empty()) return options_.model;
    auto tree = text::JsonTree::parse(body);
    if (status == 200 && tree) {
      for (JsonValue model : tree->root().find("data")) return std::string(model.find("id").text());
    }
    return fail(Code::kInvalid, "{}/v1/models names no model (HTTP {}); give --model", options_.url, status);
  }

  // Sends what is due; the loop comes back when the next one is.
  void schedule_next() {
    while (next_ < plan_.size()) {
      auto due = begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_[next_].at_s));
      if (due > Clock::now()) return loop_.at(due, [this] { schedule_next(); });
      waiting_.push_back(next_++);
      send_waiting();
    }
  }

  void send_waiting() {
    while (!waiting_.empty() && (options_.max_concurrency <= 0 || num_running_ < options_.max_concurrency)) {
      std::size_t i = waiting_.front();
      waiting_.pop_front();
      send(i);
    }
  }

  void send(std::size_t i) {
    outcomes_[i].input_tokens = plan_[i].prompt_tokens();
    net::HttpRequest request{
        .method = "POST", .path = options_.endpoint, .headers = headers(), .body = body_of(plan_[i])};
    ++num_running_;
    // Shared by the three callbacks of one request.
    auto exchange = std::make_shared<Exchange>(outcomes_[i], begin_);
    client_->send(std::move(request), {.on_head = [exchange](int s, const net::Headers&) { exchange->on_head(s); },
                                       .on_body = [exchange](std::string_view bytes) { exchange->on_body(bytes); },
                                       .on_end =
                                           [this, exchange](const std::optional<Error>& error) {
                                             exchange->on_end(error);
                                             on_ended();
                                           }});
  }

  void on_ended() {
    --num_running_;
    if (++num_ended_ == plan_.size()) return loop_.stop();
    send_waiting();
  }

  std::string body_of(const PlannedRequest& r) const {
    std::vector<int32_t> ids = prompt_ids(r, options_.least_token, options_.most_token);
    bool is_chat = options_.endpoint.ends_with("/chat/completions");
    JsonWriter w;
    w.begin_object().field("model", model_).field("stream", true).field("max_tokens", r.output_tokens);
    w.field("ignore_eos", true).field("temperature", 0);
    w.key("stream_options").begin_object().field("include_usage", true).end_object();
    if (is_chat) {
      std::string words;
      for (int32_t id : ids) words += fmt::format("{}{}", words.empty() ? "" : " ", id);
      w.key("messages").begin_array().begin_object().field("role", "user").field("content", words);
      w.end_object().end_array();
    } else {
      w.key("prompt").begin_array();
      for (int32_t id : ids) w.value(id);
      w.end_array();
    }
    std::string body = w.end_object().take();
    if (options_.extra_body.empty()) return body;
    body.back() = ',';  // later members count
    return body + options_.extra_body.substr(options_.extra_body.find('{') + 1);
  }

  const LoadOptions& options_;
  std::vector<PlannedRequest> plan_;
  std::vector<RequestOutcome> outcomes_;
  net::Loop loop_;
  std::unique_ptr<net::HttpClient> client_;
  std::string model_;
  Clock::time_point begin_;
  std::size_t next_ = 0, num_ended_ = 0;
  int num_running_ = 0;
  std::deque<std::size_t> waiting_;  // due, but held back by max_concurrency
};

Result<void> check_options(const LoadOptions& o) {
  if (o.least_token > o.most_token)
    return fail(Code::kInvalid, "--token-ids begins with {} and ends with {}", o.least_token, o.most_token);
  for (const auto& [name, limit] : o.goodput_ms) {
    bool is_known = name == "ttft" || name == "tpot" || name == "itl" || name == "e2el";
    if (!is_known || limit < 0)
      return fail(Code::kInvalid, "--goodput {}:{} is not one of ttft, tpot, itl, e2el with milliseconds", name, limit);
  }
  if (o.extra_body.empty()) return {};
  auto tree = text::JsonTree::parse(o.extra_body);
  if (!tree || !tree->root().is_object() || tree->root().size() == 0)
    return fail(Code::kInvalid, "--extra-body is '{}'; a JSON object with members is needed", o.extra_body);
  return {};
}

}  // namespace

Result<LoadResult> run_load(const LoadOptions& options) {
  DI_TRY_VOID(check_options(options));
  DI_TRY(std::vector<PlannedRequest> plan, plan_load(options));
  return LoadRun(options, std::move(plan)).run();
}

}  // namespace deepinfer::serve
