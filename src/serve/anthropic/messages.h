// POST /v1/messages, /v1/messages/count_tokens: the Anthropic form.
#pragma once

#include <string>

#include "serve/generation.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::anthropic {

// Pure; any thread.
ApiResult<GenerationPlan> plan_message(const Reading& from, std::string body);
ApiResult<std::string> count_tokens(const Reading& from, std::string body);
void add_messages(Service& service);

}  // namespace deepinfer::serve::anthropic
