// POST /v1/completions: text or token ids in, text out; fill in the middle with `suffix`.
#pragma once

#include <string>

#include "serve/generation.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

// A body to what the engine is asked for. Pure; any thread.
ApiResult<GenerationPlan> plan_completion(const Reading& from, std::string body);
void add_completions(Service& service);

}  // namespace deepinfer::serve::openai
