#include "serve/api_error.h"

#include <algorithm>

#include "serve/json_writer.h"

namespace deepinfer::serve {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

bool is_field_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '[' || c == ']';
}

// The field that a message begins with: "messages[3].content must ..." -> messages[3].content.
std::string leading_field(std::string_view message) {
  std::string_view word = message.substr(0, message.find_first_of(" :"));
  bool is_name = !word.empty() && std::all_of(word.begin(), word.end(), is_field_char);
  bool is_prose = word == "the" || word == "a" || word == "not" || word == "prompt" || word == "byte";
  return is_name && !is_prose ? std::string(word) : "";
}

}  // namespace

tl::unexpected<ApiError> bad_field(std::string_view param, std::string message) {
  return tl::unexpected(ApiError{.message = std::move(message), .param = std::string(param)});
}

tl::unexpected<ApiError> api_fail(int status, std::string code, std::string message) {
  return tl::unexpected(ApiError{.status = status, .message = std::move(message), .code = std::move(code)});
}

ApiError invalid_request(std::string message) {
  std::string param = leading_field(message);
  return {.message = std::move(message), .param = std::move(param)};
}

ApiError to_api_error(const Error& error) {
  ApiError e = invalid_request(error.message);
  if (error.code == Code::kInternal) e.status = 500;
  if (error.code == Code::kUnsupported) e.code = "unsupported";
  return e;
}

std::string error_json(ApiStyle style, const ApiError& error, std::string_view request_id) {
  JsonWriter w;
  w.begin_object();
  if (style == ApiStyle::kAnthropic) {
    w.field("type", "error").key("error").begin_object();
    w.field("type", anthropic_type(error.status)).field("message", error.message).end_object();
    w.field("request_id", request_id);
  } else {
    w.key("error").begin_object();
    w.field("message", error.message).field("type", openai_type(error.status));
    error.param.empty() ? w.key("param").null() : w.field("param", error.param);
    error.code.empty() ? w.key("code").null() : w.field("code", error.code);
    w.end_object();
  }
  return w.end_object().take();
}

net::HttpResponse error_response(ApiStyle style, const ApiError& error, std::string_view request_id) {
  net::HttpResponse r{.status = error.status, .headers = {{"Content-Type", "application/json"}}};
  if (error.retry_after_s > 0) r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  if (error.status == 401) r.headers.push_back({"WWW-Authenticate", "Bearer"});
  r.body = error_json(style, error, request_id);
  return r;
}

}  // namespace deepinfer::serve
