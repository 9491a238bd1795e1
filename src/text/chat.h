// A chat request as the prompt the model was trained on, and how to read what it answers.
//
// Control tokens are marked by byte ranges; the text between them is the user's and is never read for control tokens
// (Tokenizer::encode_marked). The tables of tokens, the tool block and the effort line are wire constants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_request.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
inline constexpr std::string_view kDefaultImageToken = "<｜deepseek_image｜>";

struct ChatOptions {
  // Text of the token that marks an image; the token with the configuration's image_token_id.
  std::string image_token = std::string(kDefaultImageToken);
  // Keep reasoning behind the last user or later system message even if no tools are declared; a turn of tool results
  // alone does not count as such a message.
  bool tool_results_keep_reasoning = false;
};

struct ImageRef {
  std::string url, detail;
};

// What the output must look like; a grammar is built from it.
struct OutputConstraint {
  enum class Kind { kNone, kJson, kRegex, kToolCall, kToolCallRequired };
  Kind kind = Kind::kNone;
  std::string schema;           // JSON schema (empty: any JSON), regular expression, or list of tools
  bool is_single_call = false;  // of tool calls: exactly one when required, at most one otherwise
};

// A range of a prompt whose ids are known (Message::written).
struct WrittenRange {
  ByteRange range;
  std::vector<int32_t> ids;
};

struct ChatPrompt {
  std::string text;
  std::vector<ByteRange> special;     // control tokens outside of `written`, ascending
  std::vector<WrittenRange> written;  // ascending
  std::vector<ByteRange> messages;    // of the text, one for each message; a first system message has the whole head
  std::vector<ImageRef> images;       // in the order of their tokens
  OutputFormat output;                // for the OutputParser (stop strings are not filled in)
  OutputConstraint constraint;
};

ChatPrompt render_chat(const ChatRequest& request, const ChatOptions& options = {});

// A raw completion: BOS and the prompt, or the fill-in-the-middle form if there is a suffix. Only the control tokens
// added here are marked; encode_completion() below also reads control tokens in the user's text, which counts as
// trusted.
ChatPrompt render_completion(std::string_view prompt, std::string_view suffix = {});
Result<std::vector<int32_t>> encode_completion(const Tokenizer& tokenizer, std::string_view prompt,
                                               std::string_view suffix = {}, bool is_trusted = true);

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt);

}  // namespace deepinfer::text
