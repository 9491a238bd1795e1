#include "serve/anthropic/message_writers.h"

#include <optional>

#include "serve/json_writer.h"
#include "serve/sse.h"

namespace deepinfer::serve::anthropic {
namespace {

using text::OutputDelta;

std::string_view stop_reason(const ChoiceEnd& end) {
  if (end.finish_reason == "tool_calls") return "tool_use";
  if (end.finish_reason == "length") return "max_tokens";
  return end.stop.empty() ? "end_turn" : "stop_sequence";
}

void write_usage(JsonWriter& w, const CallUsage& u) {
  w.key("usage").begin_object().field("input_tokens", u.prompt_tokens - u.cached_tokens);
  w.field("cache_creation_input_tokens", 0).field("cache_read_input_tokens", u.cached_tokens);
  w.field("output_tokens", u.completion_tokens).end_object();
}

void write_stop(JsonWriter& w, std::string_view reason, const std::string& stop) {
  w.field("stop_reason", reason).key("stop_sequence");
  stop.empty() ? w.null() : w.value(stop);
}

class MessageStream final : public Responder {
 public:
  explicit MessageStream(const MessageWriterOptions& options) : options_(options) {}

  void begin(const CallPtr& call) override {
    sse_.emplace(call->exchange);
    sse_->start(call->headers);
    JsonWriter w;
    w.begin_object().field("type", "message_start").key("message").begin_object();
    w.field("id", options_.id).field("type", "message").field("role", "assistant").field("model", options_.model);
    w.key("content").begin_array().end_array().key("stop_reason").null().key("stop_sequence").null();
    write_usage(w, {.prompt_tokens = options_.prompt_tokens});
    w.end_object().end_object();
    sse_->event("message_start", w.text());
  }

  void piece(const Piece& p) override {
    for (const OutputDelta& d : p.deltas) add(d, p.call_ids);
  }

  void choice_end(const ChoiceEnd& end) override {
    close_block();
    reason_ = stop_reason(end);
    stop_ = end.finish_reason == "stop" ? end.stop : "";
  }

  void finish(const CallPtr&, const CallUsage& usage) override {
    JsonWriter w;
    w.begin_object().field("type", "message_delta").key("delta").begin_object();
    write_stop(w, reason_, stop_);
    w.end_object();
    write_usage(w, usage);
    w.end_object();
    sse_->event("message_delta", w.text());
    sse_->event("message_stop", R"({"type":"message_stop"})");
    sse_->finish();
  }

  void fail(const CallPtr& call, const ApiError& error) override {
    sse_->event("error", error_json(ApiStyle::kAnthropic, error, call->request_id));
    sse_->finish();
  }

  void keep_alive() override { sse_->event("ping", R"({"type":"ping"})"); }

 private:
  void add(const OutputDelta& d, std::span<const std::string> call_ids) {
    if (d.kind != OutputDelta::Kind::kArguments && (kind_ != d.kind || d.kind == OutputDelta::Kind::kCall))
      open_block(d, call_ids);
    if (d.kind == OutputDelta::Kind::kCall) return;
    JsonWriter w;
    w.begin_object().field("type", "content_block_delta").field("index", index_).key("delta").begin_object();
    if (d.kind == OutputDelta::Kind::kReasoning) {
      w.field("type", "thinking_delta").field("thinking", d.text);
    } else if (d.kind == OutputDelta::Kind::kContent) {
      w.field("type", "text_delta").field("text", d.text);
    } else {
      w.field("type", "input_json_delta").field("partial_json", d.text);
    }
    w.end_object().end_object();
    sse_->event("content_block_delta", w.text());
  }

  void open_block(const OutputDelta& d, std::span<const std::string> call_ids) {
    close_block();
    ++index_;
    kind_ = d.kind;
    JsonWriter w;
    w.begin_object().field("type", "content_block_start").field("index", index_).key("content_block").begin_object();
    if (d.kind == OutputDelta::Kind::kReasoning) {
      w.field("type", "thinking").field("thinking", "").field("signature", "");
    } else if (d.kind == OutputDelta::Kind::kContent) {
      w.field("type", "text").field("text", "");
    } else {
      w.field("type", "tool_use").field("id", call_ids[static_cast<std::size_t>(d.call_index)]).field("name", d.text);
      w.key("input").begin_object().end_object();
    }
    w.end_object().end_object();
    sse_->event("content_block_start", w.text());
  }

  void close_block() {
    if (!kind_) return;
    kind_.reset();
    sse_->event("content_block_stop", fmt::format(R"({{"type":"content_block_stop","index":{}}})", index_));
  }

  MessageWriterOptions options_;
  std::optional<SseWriter> sse_;
  int index_ = -1;                         // of the open block or the last one
  std::optional<OutputDelta::Kind> kind_;  // of the open block
  std::string_view reason_ = "end_turn";
  std::string stop_;
};

class MessageWhole final : public CollectingResponder {
 public:
  explicit MessageWhole(const MessageWriterOptions& options) : options_(options) {}

 private:
  std::string body(const CallUsage& usage) override {
    const Choice& c = choices_[0];
    JsonWriter w;
    w.begin_object().field("id", options_.id).field("type", "message").field("role", "assistant");
    w.field("model", options_.model).key("content").begin_array();
    if (c.output.reasoning) {
      w.begin_object()
          .field("type", "thinking")
          .field("thinking", *c.output.reasoning)
          .field("signature", "")
          .end_object();
    }
    if (!c.output.content.empty()) {
      w.begin_object().field("type", "text").field("text", c.output.content).end_object();
    }
    for (std::size_t i = 0; i < c.output.calls.size(); ++i) {
      const auto& call = c.output.calls[i];
      w.begin_object().field("type", "tool_use").field("id", c.call_ids[i]).field("name", call.name);
      // Cut in the middle by max_tokens, the arguments are no JSON; the stop reason says so.
      w.key("input").raw(text::is_json(call.arguments) ? call.arguments : "{}").end_object();
    }
    w.end_array();
    write_stop(w, stop_reason({.finish_reason = c.finish_reason, .stop = c.stop}),
               c.finish_reason == "stop" ? c.stop : "");
    write_usage(w, usage);
    return w.end_object().take();
  }

  MessageWriterOptions options_;
};

}  // namespace

std::unique_ptr<Responder> make_message_stream(const MessageWriterOptions& options) {
  return std::make_unique<MessageStream>(options);
}
std::unique_ptr<Responder> make_message_whole(const MessageWriterOptions& options) {
  return std::make_unique<MessageWhole>(options);
}

}  // namespace deepinfer::serve::anthropic
