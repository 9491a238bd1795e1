// POST /tokenize, /detokenize, /render: text or a chat to token ids and back.
#pragma once

#include <string>

#include "serve/api_error.h"
#include "serve/reading.h"

namespace deepinfer::serve {
class Service;

// Bodies to bodies. Pure; any thread.
ApiResult<std::string> tokenize(const Reading& from, std::string body);
ApiResult<std::string> detokenize(const Reading& from, std::string body);
ApiResult<std::string> render(const Reading& from, std::string body);

void add_tokenize(Service& service);

}  // namespace deepinfer::serve
