#include "serve/openai/chat_writers.h"

#include "serve/openai/chunk_stream.h"

namespace deepinfer::serve::openai {
namespace {

using text::OutputDelta;

std::string head_of(const ChatWriterOptions& options) {
  std::string head = fmt::format(R"({{"id":"{}","object":"chat.completion.chunk","created":{},"model":)", options.id,
                                 options.created_s);
  text::append_json_string(options.model->name, head);
  return head + R"(,"system_fingerprint":null)";
}

class ChatStream final : public ChunkStream {
 public:
  explicit ChatStream(const ChatWriterOptions& options)
      : ChunkStream(head_of(options), options.includes_usage, options.returns_timings), options_(options) {}

  void begin(const CallPtr& call) override {
    ChunkStream::begin(call);
    for (int i = 0; i < options_.num_choices; ++i) {
      chunk(i, R"({"role":"assistant","content":""})", {}, "");
    }
  }

  void piece(const Piece& p) override {
    std::span<const TokenLogprob> logprobs = p.logprobs;
    for (const OutputDelta& d : p.deltas) {
      chunk(p.choice, delta(d, p.call_ids), logprobs, "");
      logprobs = {};  // all of them go with the first chunk
    }
    if (!logprobs.empty()) chunk(p.choice, "{}", logprobs, "");
    if (!p.token_ids.empty()) token_ids(p);
  }

  void choice_end(const ChoiceEnd& end) override { chunk(end.choice, R"({"content":""})", {}, end.finish_reason); }

 private:
  static std::string delta(const OutputDelta& d, std::span<const std::string> call_ids) {
    JsonWriter w;
    w.begin_object();
    switch (d.kind) {
      case OutputDelta::Kind::kReasoning:
        w.field("reasoning_content", d.text);
        break;
      case OutputDelta::Kind::kContent:
        w.field("content", d.text);
        break;
      case OutputDelta::Kind::kCall:
        w.key("tool_calls").begin_array().begin_object().field("index", d.call_index);
        w.field("id", call_ids[static_cast<std::size_t>(d.call_index)]).field("type", "function");
        w.key("function").begin_object().field("name", d.text).field("arguments", "").end_object();
        w.end_object().end_array();
        break;
      case OutputDelta::Kind::kArguments:
        w.key("tool_calls").begin_array().begin_object().field("index", d.call_index);
        w.key("function").begin_object().field("arguments", d.text).end_object();
        w.end_object().end_array();
        break;
    }
    return w.end_object().take();
  }

  void chunk(int choice, std::string_view delta_json, std::span<const TokenLogprob> logprobs,
             std::string_view finish_reason) {
    JsonWriter w;
    w.begin_array().begin_object().field("index", choice).key("delta").raw(delta_json);
    if (logprobs.empty()) {
      w.key("logprobs").null();
    } else {
      w.key("logprobs").begin_object().key("content");
      write_chat_logprobs(w, *options_.model->tokenizer, logprobs);
      w.end_object();
    }
    w.key("finish_reason");
    finish_reason.empty() ? w.null() : w.value(finish_reason);
    w.end_object().end_array();
    send(w.text());
  }

  void token_ids(const Piece& p) {
    JsonWriter w;
    w.begin_array().begin_object().field("index", p.choice).key("delta").begin_object().end_object();
    w.key("logprobs").null().key("finish_reason").null().key("token_ids");
    write_token_ids(w, p.token_ids);
    w.end_object().end_array();
    send(w.text());
  }

  ChatWriterOptions options_;
};

class ChatWhole final : public CollectingResponder {
 public:
  explicit ChatWhole(const ChatWriterOptions& options) : options_(options) {}

 private:
  std::string body(const CallUsage& usage) override {
    JsonWriter w;
    w.begin_object().field("id", options_.id).field("object", "chat.completion").field("created", options_.created_s);
    w.field("model", options_.model->name).key("system_fingerprint").null().key("choices").begin_array();
    for (const auto& [index, choice] : choices_) write_choice(w, index, choice);
    w.end_array();
    write_usage(w, usage);
    if (options_.returns_timings) write_timings(w, usage);
    return w.end_object().take();
  }

  void write_choice(JsonWriter& w, int index, const Choice& c) {
    w.begin_object().field("index", index).key("message").begin_object();
    w.field("role", "assistant").field("content", c.output.content);
    if (options_.is_thinking) {
      w.key("reasoning_content");
      c.output.reasoning ? w.value(*c.output.reasoning) : w.null();
    }
    if (!c.output.calls.empty()) {
      w.key("tool_calls").begin_array();
      for (std::size_t i = 0; i < c.output.calls.size(); ++i) {
        w.begin_object().field("id", c.call_ids[i]).field("type", "function").key("function").begin_object();
        w.field("name", c.output.calls[i].name).field("arguments", c.output.calls[i].arguments);
        w.end_object().end_object();
      }
      w.end_array();
    }
    w.end_object();
    if (options_.wants_logprobs) {
      w.key("logprobs").begin_object().key("content");
      write_chat_logprobs(w, *options_.model->tokenizer, c.logprobs);
      w.end_object();
    } else {
      w.key("logprobs").null();
    }
    w.field("finish_reason", c.finish_reason);
    if (!c.token_ids.empty()) {
      w.key("token_ids");
      write_token_ids(w, c.token_ids);
    }
    w.end_object();
  }

  ChatWriterOptions options_;
};

}  // namespace

std::unique_ptr<Responder> make_chat_stream(const ChatWriterOptions& options) {
  return std::make_unique<ChatStream>(options);
}
std::unique_ptr<Responder> make_chat_whole(const ChatWriterOptions& options) {
  return std::make_unique<ChatWhole>(options);
}

}  // namespace deepinfer::serve::openai
