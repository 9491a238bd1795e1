// From a checked chat to the engine's request: prompt, limits, grammar. All chat APIs end here.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "serve/generation.h"
#include "serve/generation_fields.h"
#include "serve/reading.h"
#include "text/chat.h"
#include "text/chat_request.h"

namespace deepinfer::serve {

struct ChatLimits {
  std::optional<int64_t> max_tokens;
  // Names of the API, for messages.
  std::string_view field = "max_tokens";
  std::string_view format_field = "response_format";
};

// What chat APIs call alike and text::parse_chat_request reads.
template <typename T>
FieldTable<T> chat_fields() {
  return {ignored<T>("tools"), ignored<T>("tool_choice")};
}

// The prompt that the model gets: what it wrote itself stands as it wrote it; images are refused by name.
ApiResult<text::ChatPrompt> prompt_of(const Reading& from, text::ChatRequest& chat);
ApiResult<std::vector<int32_t>> prompt_ids(const Model& model, const text::ChatPrompt& prompt);

// Fills in the plan's requests and output format. `fields.sampling` is used up.
ApiResult<> plan_chat_request(const Reading& from, text::ChatRequest& chat, GenerationFields& fields,
                              const ChatLimits& limits, GenerationPlan& plan);

// Tokens of a chat's answer when nothing is said (encoding.md 6).
int64_t usual_max_tokens(const text::ChatRequest& chat);

}  // namespace deepinfer::serve
