#include "serve/call.h"

#include <utility>

namespace deepinfer::serve {

void Call::reply(net::HttpResponse response) {
  if (auto see = std::exchange(on_reply, nullptr)) see(response);
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  exchange->respond(std::move(response));
}

void Call::reply_json(std::string body, int status) {
  reply({.status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)});
}

void Call::reply_error(const ApiError& e) {
  error = e.message;
  reply(error_response(style, e, request_id));
}

}  // namespace deepinfer::serve
