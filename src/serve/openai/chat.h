// POST /v1/chat/completions
#pragma once

#include <string>

#include "serve/generation.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

// A body to what the engine is asked for. Pure; any thread.
ApiResult<GenerationPlan> plan_chat(const Reading& from, std::string body);
void add_chat(Service& service);

}  // namespace deepinfer::serve::openai
