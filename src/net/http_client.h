// An HTTP/1.1 client on the loop: many requests at a time, connections kept and used again.
//
//   client->send({.method = "POST", .path = "/v1/completions", .body = b}, {.on_head = f, .on_body = g, .on_end = h});
//
//   on_head once, on_body for every piece of the body as it comes, on_end exactly once and last: with an error if the
//   connection could not be made, if it broke, or if the answer was cut.
//   A request has a connection of its own while it runs. A kept connection that the server has closed meanwhile is
//   replaced by a new one, once. Everything runs on the loop, which must not run on after the client is gone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http.h"
#include "net/loop.h"

namespace deepinfer::net {

class HttpClient {
 public:
  struct Events {
    std::function<void(int status, const Headers& headers)> on_head;
    std::function<void(std::string_view bytes)> on_body;
    std::function<void(const std::optional<Error>& error)> on_end;
  };
  struct Options {
    std::chrono::milliseconds timeout{600'000};  // from send() to on_end
    bool keeps_connections = true;
    std::string trusted;  // PEM file of certificates that are trusted beside the system's, for https
  };

  // `url`: http://HOST[:PORT] or https://HOST[:PORT], resolved here. A path in it is refused: requests carry theirs.
  static Result<std::unique_ptr<HttpClient>> create(Loop& loop, const std::string& url, const Options& options);
  virtual ~HttpClient() = default;

  virtual void send(HttpRequest request, Events events) = 0;
  virtual int num_running() const = 0;
};

}  // namespace deepinfer::net
