// A request of the Responses API as one of the chat API, which text::parse_chat_request understands.
//
//   instructions + earlier conversation + input items   ->   messages
//   message | function_call | function_call_output | reasoning   ->   user, assistant with calls, tool,
//   reasoning_content Neighbouring reasoning, message and function_call items of the assistant are one message.
#pragma once

#include <string>

#include "serve/api_error.h"
#include "serve/fields.h"

namespace deepinfer::serve::openai {

struct ResponseChat {
  std::string body;      // of the chat API
  std::string messages;  // the conversation without the instructions, which do not carry over
};

// `earlier`: messages of the answer that is continued, or empty. Errors name the fields of the Responses API.
ApiResult<ResponseChat> response_to_chat(JsonValue root, const std::string& earlier);

}  // namespace deepinfer::serve::openai
