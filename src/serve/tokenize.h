// POST /tokenize, /detokenize, /render: text or a chat to token ids and back.
#pragma once

#include <string>

#include "serve/api_error.h"
#include "serve/model.h"

namespace deepinfer::serve {
class Service;

// Bodies to bodies. Pure; any thread.
ApiResult<std::string> tokenize(const Model& model, std::string body);
ApiResult<std::string> detokenize(const Model& model, std::string body);
ApiResult<std::string> render(const Model& model, std::string body);

void add_tokenize(Service& service);

}  // namespace deepinfer::serve
