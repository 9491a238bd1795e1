#include "serve/openai/completion_writers.h"

#include "serve/openai/chunk_stream.h"

namespace deepinfer::serve::openai {
namespace {

std::vector<LegacyToken> legacy_tokens(std::span<const TokenLogprob> logprobs) {
  std::vector<LegacyToken> tokens;
  for (const TokenLogprob& l : logprobs) tokens.push_back({l.token, l.logprob, l.top});
  return tokens;
}

// The text of an echoed prompt: without the mark of its beginning, which the service put there.
std::string echoed_text(const Model& model, const std::vector<int32_t>& prompt) {
  std::string text = model.tokenizer->decode(prompt);
  if (text.starts_with(text::kBos)) text.erase(0, text::kBos.size());
  return text;
}

std::string head_of(const CompletionWriterOptions& options) {
  std::string head =
      fmt::format(R"({{"id":"{}","object":"text_completion","created":{},"model":)", options.id, options.created_s);
  text::append_json_string(options.model->name, head);
  return head;
}

class CompletionStream final : public ChunkStream {
 public:
  explicit CompletionStream(CompletionWriterOptions options)
      : ChunkStream(head_of(options), options.includes_usage, options.returns_timings), options_(std::move(options)) {}

  void begin(const CallPtr& call) override {
    ChunkStream::begin(call);
    for (std::size_t p = 0; p < options_.prompts.size(); ++p) {
      std::string text = echoed_text(*options_.model, options_.prompts[p]);
      for (int i = 0; i < options_.num_per_prompt; ++i) {
        chunk(static_cast<int>(p) * options_.num_per_prompt + i, text, {}, {}, "");
      }
    }
  }
  void piece(const Piece& p) override {
    std::string text;
    for (const text::OutputDelta& d : p.deltas) text += d.text;
    chunk(p.choice, text, p.logprobs, p.token_ids, "");
  }
  void choice_end(const ChoiceEnd& end) override { chunk(end.choice, "", {}, {}, end.finish_reason); }

 private:
  void chunk(int choice, std::string_view text, std::span<const TokenLogprob> logprobs, std::span<const int32_t> ids,
             std::string_view finish_reason) {
    JsonWriter w;
    w.begin_array().begin_object().field("index", choice).field("text", text).key("logprobs");
    if (logprobs.empty()) {
      w.null();
    } else {
      write_legacy_logprobs(w, *options_.model->tokenizer, legacy_tokens(logprobs), offsets_[choice]);
    }
    w.key("finish_reason");
    finish_reason.empty() ? w.null() : w.value(finish_reason);
    if (!ids.empty()) {
      w.key("token_ids");
      write_token_ids(w, ids);
    }
    w.end_object().end_array();
    send(w.text());
  }

  CompletionWriterOptions options_;
  std::map<int, int64_t> offsets_;  // of the next token in a choice's text, in characters
};

class CompletionWhole final : public CollectingResponder {
 public:
  explicit CompletionWhole(CompletionWriterOptions options) : options_(std::move(options)) {}

 private:
  std::string body(const CallUsage& usage) override {
    JsonWriter w;
    w.begin_object().field("id", options_.id).field("object", "text_completion").field("created", options_.created_s);
    w.field("model", options_.model->name).key("choices").begin_array();
    for (const auto& [index, choice] : choices_) write_choice(w, index, choice);
    w.end_array();
    write_usage(w, usage);
    if (options_.returns_timings) write_timings(w, usage);
    return w.end_object().take();
  }

  void write_choice(JsonWriter& w, int index, const Choice& c) {
    const std::vector<int32_t>* prompt = nullptr;
    if (options_.echoes) prompt = &options_.prompts[static_cast<std::size_t>(index / options_.num_per_prompt)];
    std::string text = prompt != nullptr ? echoed_text(*options_.model, *prompt) : "";
    w.begin_object().field("index", index).field("text", text + c.output.content).key("logprobs");
    if (options_.wants_logprobs) {
      std::vector<LegacyToken> tokens = prompt != nullptr ? prompt_tokens(*prompt, c) : std::vector<LegacyToken>();
      for (const LegacyToken& t : legacy_tokens(c.logprobs)) tokens.push_back(t);
      int64_t offset = 0;
      write_legacy_logprobs(w, *options_.model->tokenizer, tokens, offset);
    } else {
      w.null();
    }
    w.field("finish_reason", c.finish_reason);
    if (!c.stop.empty()) w.field("stop_reason", c.stop);
    if (!c.token_ids.empty()) {
      w.key("token_ids");
      write_token_ids(w, c.token_ids);
    }
    w.end_object();
  }

  // The engine gives the log-probabilities of all prompt tokens but the first.
  static std::vector<LegacyToken> prompt_tokens(const std::vector<int32_t>& prompt, const Choice& c) {
    std::vector<LegacyToken> tokens;
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      std::optional<float> logprob;
      if (i > 0 && i - 1 < c.prompt_logprobs.size()) logprob = c.prompt_logprobs[i - 1];
      tokens.push_back({prompt[i], logprob, {}});
    }
    return tokens;
  }

  CompletionWriterOptions options_;
};

}  // namespace

std::unique_ptr<Responder> make_completion_stream(CompletionWriterOptions options) {
  return std::make_unique<CompletionStream>(std::move(options));
}
std::unique_ptr<Responder> make_completion_whole(CompletionWriterOptions options) {
  return std::make_unique<CompletionWhole>(std::move(options));
}

}  // namespace deepinfer::serve::openai
