#include "serve/openai/wire.h"

#include <algorithm>

#include "text/utf8.h"

namespace deepinfer::serve::openai {

void write_usage(JsonWriter& w, const CallUsage& u) {
  w.key("usage").begin_object();
  w.field("prompt_tokens", u.prompt_tokens).field("completion_tokens", u.completion_tokens);
  w.field("total_tokens", u.prompt_tokens + u.completion_tokens);
  w.field("prompt_cache_hit_tokens", u.cached_tokens);
  w.field("prompt_cache_miss_tokens", u.prompt_tokens - u.cached_tokens);
  w.key("prompt_tokens_details").begin_object().field("cached_tokens", u.cached_tokens);
  w.key("cached_tokens_by_tier").begin_object().field("device", u.cached_tokens).end_object();
  w.field("replayed_tokens", u.replayed_tokens).field("from_stored_windows", u.from_stored_windows).end_object();
  w.key("completion_tokens_details").begin_object().field("reasoning_tokens", u.reasoning_tokens);
  w.field("drafted_tokens", u.drafted_tokens).field("accepted_draft_tokens", u.accepted_tokens).end_object();
  w.end_object();
}

void write_timings(JsonWriter& w, const CallUsage& u) {
  w.key("timings").begin_object();
  for (auto [name, ms] :
       {std::pair("grammar_ms", u.grammar_ms), std::pair("queue_ms", u.queue_ms), std::pair("prefill_ms", u.prefill_ms),
        std::pair("first_token_ms", u.first_token_ms), std::pair("total_ms", u.total_ms)}) {
    w.key(name).raw(fmt::format("{:.3f}", ms));
  }
  w.end_object();
}

std::string token_text(const text::Tokenizer& tokenizer, int32_t id) {
  std::string out;
  text::append_lossy(tokenizer.token_bytes(id), out);
  return out;
}

namespace {

int64_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void write_token(JsonWriter& w, const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  w.field("token", token_text(tokenizer, id)).field("logprob", logprob);
  w.key("bytes").begin_array();
  for (char c : tokenizer.token_bytes(id)) w.value(static_cast<int>(static_cast<unsigned char>(c)));
  w.end_array();
}

}  // namespace

void write_chat_logprobs(JsonWriter& w, const text::Tokenizer& tokenizer, std::span<const TokenLogprob> logprobs) {
  w.begin_array();
  for (const TokenLogprob& l : logprobs) {
    w.begin_object();
    write_token(w, tokenizer, l.token, l.logprob);
    w.key("top_logprobs").begin_array();
    for (const TopLogprob& t : l.top) {
      w.begin_object();
      write_token(w, tokenizer, t.token, t.logprob);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array();
}

void write_legacy_logprobs(JsonWriter& w, const text::Tokenizer& tokenizer, std::span<const LegacyToken> tokens,
                           int64_t& offset) {
  w.begin_object();
  w.key("tokens").begin_array();
  for (const auto& t : tokens) w.value(token_text(tokenizer, t.token));
  w.end_array().key("token_logprobs").begin_array();
  for (const auto& t : tokens) t.logprob ? w.value(*t.logprob) : w.null();
  w.end_array().key("top_logprobs").begin_array();
  for (const auto& t : tokens) {
    if (!t.logprob) {
      w.null();
      continue;
    }
    w.begin_object();
    for (const TopLogprob& top : t.top) w.field(token_text(tokenizer, top.token), top.logprob);
    w.end_object();
  }
  w.end_array().key("text_offset").begin_array();
  for (const auto& t : tokens) {
    w.value(offset);
    offset += num_code_points(token_text(tokenizer, t.token));
  }
  w.end_array().end_object();
}

void write_token_ids(JsonWriter& w, std::span<const int32_t> ids) {
  w.begin_array();
  for (int32_t id : ids) w.value(id);
  w.end_array();
}

}  // namespace deepinfer::serve::openai
