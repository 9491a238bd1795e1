// What went wrong with a request, and how each API says it.
//
//   OpenAI       {"error": {"message", "type", "param", "code"}}
//   Anthropic    {"type": "error", "error": {"type", "message"}, "request_id"}
// A message names the field, the value and the limit; `param` repeats the field for programs.
#pragma once

#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "base/result.h"
#include "net/http.h"

namespace deepinfer::serve {

enum class ApiStyle { kOpenAi, kAnthropic };

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;
  std::string code;       // for programs; empty: none
  int retry_after_s = 0;  // > 0: sent as Retry-After
};

template <typename T = void>
using ApiResult = tl::expected<T, ApiError>;

// A request that names a field wrongly.
[[nodiscard]] tl::unexpected<ApiError> bad_field(std::string_view param, std::string message);
[[nodiscard]] tl::unexpected<ApiError> api_fail(int status, std::string code, std::string message);

// An error of the layers below. Their messages begin with the field, which becomes `param`.
ApiError to_api_error(const Error& error);
ApiError invalid_request(std::string message);

std::string error_json(ApiStyle style, const ApiError& error, std::string_view request_id);
net::HttpResponse error_response(ApiStyle style, const ApiError& error, std::string_view request_id);

}  // namespace deepinfer::serve
