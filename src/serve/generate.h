// POST /v1/generate: token ids in, token ids out, for clients that keep the exact history and for evaluation. No text
// is read or written; the end token is among the ids.
#pragma once

#include <string>

#include "serve/generation.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;

ApiResult<GenerationPlan> plan_generate(const Reading& from, std::string body);
void add_generate(Service& service);

}  // namespace deepinfer::serve
