// Parts that the OpenAI answers have in common.
#pragma once

#include <span>
#include <string_view>

#include "serve/json_writer.h"
#include "serve/model.h"
#include "serve/responder.h"

namespace deepinfer::serve::openai {

// "usage": {...}, with DeepSeek's cache counts and what the drafts did.
void write_usage(JsonWriter& w, const CallUsage& usage);
// "timings": {...}, in milliseconds.
void write_timings(JsonWriter& w, const CallUsage& usage);
// [{"token", "logprob", "bytes", "top_logprobs"}, ...] of chat completions.
void write_chat_logprobs(JsonWriter& w, const text::Tokenizer& tokenizer, std::span<const TokenLogprob> logprobs);
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of completions; `offset` is that of the first token and
// is moved on. The first token of a prompt has no log-probability.
struct LegacyToken {
  int32_t token;
  std::optional<float> logprob;
  std::span<const TopLogprob> top;
};
void write_legacy_logprobs(JsonWriter& w, const text::Tokenizer& tokenizer, std::span<const LegacyToken> tokens,
                           int64_t& offset);
void write_token_ids(JsonWriter& w, std::span<const int32_t> ids);
// The text of one token; what is not UTF-8 becomes U+FFFD.
std::string token_text(const text::Tokenizer& tokenizer, int32_t id);

}  // namespace deepinfer::serve::openai
