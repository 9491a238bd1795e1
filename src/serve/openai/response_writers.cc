#include "serve/openai/response_writers.h"

#include <chrono>
#include <optional>
#include <vector>

#include "serve/ids.h"
#include "serve/json_writer.h"
#include "serve/sse.h"

namespace deepinfer::serve::openai {
namespace {

using text::OutputDelta;

// One item of the output: reasoning, a message, or a call.
struct Item {
  OutputDelta::Kind kind = OutputDelta::Kind::kContent;
  std::string id, call_id, name, text;
  bool is_done = false;
};

void write_item(JsonWriter& w, const Item& item) {
  const char* status = item.is_done ? "completed" : "in_progress";
  w.begin_object().field("id", item.id);
  switch (item.kind) {
    case OutputDelta::Kind::kReasoning:
      w.field("type", "reasoning").field("status", status).key("summary").begin_array().end_array();
      w.key("content").begin_array();
      if (item.is_done) w.begin_object().field("type", "reasoning_text").field("text", item.text).end_object();
      w.end_array();
      break;
    case OutputDelta::Kind::kContent:
      w.field("type", "message").field("role", "assistant").field("status", status).key("content").begin_array();
      if (item.is_done) {
        w.begin_object().field("type", "output_text").field("text", item.text);
        w.key("annotations").begin_array().end_array().end_object();
      }
      w.end_array();
      break;
    case OutputDelta::Kind::kCall:
    case OutputDelta::Kind::kArguments:
      w.field("type", "function_call").field("status", status).field("call_id", item.call_id);
      w.field("name", item.name).field("arguments", item.text);
      break;
  }
  w.end_object();
}

class ResponseWriter final : public Responder {
 public:
  explicit ResponseWriter(const ResponseWriterOptions& options) : options_(options) {}

  void begin(const CallPtr& call) override {
    if (!options_.is_stream) return;
    sse_.emplace(call->exchange);
    sse_->start(call->headers);
    std::string body = response("in_progress", nullptr, nullptr);
    event("response.created", "\"response\":" + body);
    event("response.in_progress", "\"response\":" + body);
  }

  void piece(const Piece& p) override {
    for (const OutputDelta& d : p.deltas) add(d, p.call_ids);
  }

  void choice_end(const ChoiceEnd& end) override {
    close_item();
    is_cut_ = end.finish_reason == "length";
  }

  void finish(const CallPtr& call, const CallUsage& usage) override {
    std::string body = response(is_cut_ ? "incomplete" : "completed", &usage, nullptr);
    keep(body);
    if (!sse_) return call->reply_json(std::move(body));
    event(is_cut_ ? "response.incomplete" : "response.completed", "\"response\":" + body);
    sse_->finish();
  }

  void fail(const CallPtr& call, const ApiError& error) override {
    if (!sse_) return call->reply_error(error);
    close_item();
    event("response.failed", "\"response\":" + response("failed", nullptr, &error));
    sse_->finish();
  }

  void keep_alive() override {
    if (sse_) sse_->comment("keep-alive");
  }

 private:
  void add(const OutputDelta& d, std::span<const std::string> call_ids) {
    bool begins = d.kind == OutputDelta::Kind::kCall ||
                  (d.kind != OutputDelta::Kind::kArguments &&
                   (items_.empty() || items_.back().is_done || items_.back().kind != d.kind));
    if (begins) open_item(d, call_ids);
    if (d.kind == OutputDelta::Kind::kCall) return;
    items_.back().text += d.text;
    JsonWriter text;
    text.value(d.text);
    event(std::string(stem()) + ".delta", place() + ",\"delta\":" + text.text());
  }

  void open_item(const OutputDelta& d, std::span<const std::string> call_ids) {
    close_item();
    Item item{.kind = d.kind};
    item.id = new_id(d.kind == OutputDelta::Kind::kReasoning ? "rs_"
                     : d.kind == OutputDelta::Kind::kCall    ? "fc_"
                                                             : "msg_");
    if (d.kind == OutputDelta::Kind::kCall) {
      item.call_id = call_ids[static_cast<std::size_t>(d.call_index)];
      item.name = d.text;
    }
    items_.push_back(std::move(item));
    event("response.output_item.added", item_json());
    if (d.kind == OutputDelta::Kind::kCall) return;
    event("response.content_part.added", place() + ",\"part\":" + part_json(""));
  }

  void close_item() {
    if (items_.empty() || items_.back().is_done) return;
    Item& item = items_.back();
    JsonWriter text;
    text.value(item.text);
    if (item.kind == OutputDelta::Kind::kCall) {
      event("response.function_call_arguments.done", place() + ",\"arguments\":" + text.text());
    } else {
      event(std::string(stem()) + ".done", place() + ",\"text\":" + text.text());
      event("response.content_part.done", place() + ",\"part\":" + part_json(item.text));
    }
    item.is_done = true;
    event("response.output_item.done", item_json());
  }

  std::string_view stem() const {
    switch (items_.back().kind) {
      case OutputDelta::Kind::kReasoning:
        return "response.reasoning_text";
      case OutputDelta::Kind::kContent:
        return "response.output_text";
      default:
        return "response.function_call_arguments";
    }
  }

  // Which item an event is about.
  std::string place() const {
    JsonWriter w;
    w.begin_object().field("item_id", items_.back().id).field("output_index", items_.size() - 1);
    bool has_parts = items_.back().kind != OutputDelta::Kind::kCall;
    if (has_parts) w.field("content_index", 0);
    if (items_.back().kind == OutputDelta::Kind::kContent) w.key("logprobs").begin_array().end_array();
    std::string object = w.end_object().take();
    return object.substr(1, object.size() - 2);
  }

  std::string part_json(const std::string& text) const {
    JsonWriter w;
    bool is_reasoning = items_.back().kind == OutputDelta::Kind::kReasoning;
    w.begin_object().field("type", is_reasoning ? "reasoning_text" : "output_text").field("text", text);
    if (!is_reasoning) w.key("annotations").begin_array().end_array();
    return w.end_object().take();
  }

  std::string item_json() const {
    JsonWriter w;
    write_item(w, items_.back());
    return fmt::format("\"output_index\":{},\"item\":{}", items_.size() - 1, w.text());
  }

  void event(const std::string& type, const std::string& members) {
    if (!sse_) return;
    sse_->event(type, fmt::format(R"({{"type":"{}","sequence_number":{},{}}})", type, sequence_++, members));
  }

  std::string response(std::string_view status, const CallUsage* usage, const ApiError* error) const {
    JsonWriter w;
    w.begin_object().field("id", options_.id).field("object", "response").field("created_at", options_.created_s);
    w.field("status", status).field("model", options_.model).key("error");
    if (error != nullptr) {
      std::string_view code = error->code.empty() ? std::string_view("server_error") : std::string_view(error->code);
      w.begin_object().field("code", code).field("message", error->message).end_object();
    } else {
      w.null();
    }
    w.key("incomplete_details");
    if (status == "incomplete") {
      w.begin_object().field("reason", "max_output_tokens").end_object();
    } else {
      w.null();
    }
    w.key("output").begin_array();
    for (const Item& item : items_) write_item(w, item);
    w.end_array().key("usage");
    if (usage != nullptr) {
      w.begin_object().field("input_tokens", usage->prompt_tokens);
      w.key("input_tokens_details").begin_object().field("cached_tokens", usage->cached_tokens).end_object();
      w.field("output_tokens", usage->completion_tokens);
      w.key("output_tokens_details").begin_object().field("reasoning_tokens", usage->reasoning_tokens).end_object();
      w.field("total_tokens", usage->prompt_tokens + usage->completion_tokens).end_object();
    } else {
      w.null();
    }
    std::string body = w.end_object().take();
    return "{" + options_.echoed + body.substr(1);
  }

  // What the assistant said, as a message of the chat API.
  std::string as_message() const {
    std::string text, reasoning;
    JsonWriter calls;
    calls.begin_array();
    bool has_calls = false;
    for (const Item& item : items_) {
      if (item.kind == OutputDelta::Kind::kContent) text += item.text;
      if (item.kind == OutputDelta::Kind::kReasoning) reasoning += item.text;
      if (item.kind != OutputDelta::Kind::kCall) continue;
      has_calls = true;
      calls.begin_object().field("id", item.call_id).field("type", "function").key("function").begin_object();
      calls.field("name", item.name).field("arguments", item.text).end_object().end_object();
    }
    JsonWriter w;
    w.begin_object().field("role", "assistant").field("content", text);
    if (!reasoning.empty()) w.field("reasoning_content", reasoning);
    if (has_calls) w.key("tool_calls").raw(calls.end_array().take());
    return w.end_object().take();
  }

  void keep(const std::string& body) {
    if (options_.store == nullptr) return;
    StoredResponse stored{.body = body, .messages = options_.messages + "," + as_message()};
    auto bytes = static_cast<int64_t>(stored.body.size() + stored.messages.size());
    options_.store->put(options_.tenant, options_.id, std::move(stored), bytes, std::chrono::steady_clock::now());
  }

  ResponseWriterOptions options_;
  std::optional<SseWriter> sse_;
  std::vector<Item> items_;
  int sequence_ = 0;
  bool is_cut_ = false;
};

}  // namespace

std::unique_ptr<Responder> make_response_writer(const ResponseWriterOptions& options) {
  return std::make_unique<ResponseWriter>(options);
}

}  // namespace deepinfer::serve::openai
