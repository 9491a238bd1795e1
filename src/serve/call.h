// One HTTP request being served: the exchange, who asks, and what the access log will say.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/http_server.h"
#include "serve/api_error.h"
#include "serve/keys.h"

namespace deepinfer::serve {

struct Call {
  std::shared_ptr<net::Exchange> exchange;  // shared with the connection
  std::string request_id;
  ApiStyle style = ApiStyle::kOpenAi;
  Principal principal;
  std::string_view route;  // the pattern that matched: bounded, for metrics
  std::string path_id;     // what stood in the pattern's {id}
  net::Headers headers;    // of the answer, whatever it is
  // For the access log.
  int64_t prompt_tokens = -1, completion_tokens = -1, cached_tokens = -1;
  std::string finish, error;
  std::string logged_body;  // only if the operator asked for prompts in the log

  // Sees a whole answer before it is sent; streams do not pass here.
  std::function<void(const net::HttpResponse&)> on_reply;

  const net::HttpRequest& request() const { return exchange->request; }
  void reply_json(std::string body, int status = 200);
  void reply_error(const ApiError& error);
  void reply(net::HttpResponse response);
};

// Shared by the connection's callback, the worker that reads the body and the generation that answers it.
using CallPtr = std::shared_ptr<Call>;

}  // namespace deepinfer::serve
