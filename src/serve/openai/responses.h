// POST /v1/responses; GET, DELETE /v1/responses/{id}; POST /v1/responses/{id}/cancel.
//
// Answers are kept for a while unless store is false, so that previous_response_id can continue them.
#pragma once

#include <string>

#include "serve/generation.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

// A body to what the engine is asked for. Any thread.
ApiResult<GenerationPlan> plan_response(const Reading& from, std::string body);
void add_responses(Service& service);

}  // namespace deepinfer::serve::openai
