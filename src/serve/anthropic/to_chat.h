// A request of the Messages API as one of the chat API, which text::parse_chat_request understands.
//
//   system + messages of blocks                     ->  system, user, assistant, tool messages
//   thinking | tool_use | tool_result blocks        ->  reasoning_content | tool_calls | tool messages
//   a last message of the assistant                 ->  prefix: true
#pragma once

#include <string>

#include "serve/api_error.h"
#include "serve/fields.h"

namespace deepinfer::serve::anthropic {

// The chat's body as JSON text; errors name the fields of the Messages API.
ApiResult<std::string> to_chat_body(JsonValue root);

}  // namespace deepinfer::serve::anthropic
