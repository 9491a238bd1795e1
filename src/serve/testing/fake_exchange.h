// An exchange without a socket: keeps what was answered.
#pragma once

#include <string>

#include "net/http_server.h"

namespace deepinfer::serve {

class FakeExchange final : public net::Exchange {
 public:
  explicit FakeExchange(net::HttpRequest r) : Exchange(std::move(r)) {}

  void respond(net::HttpResponse r) override {
    if (!is_open()) return;
    status = r.status;
    headers = std::move(r.headers);
    body = std::move(r.body);
    end(net::CloseReason::kDone);
  }
  void start(int s, const net::Headers& h) override {
    status = s;
    headers = h;
  }
  void write(std::string_view bytes) override {
    if (is_open()) body += bytes;
  }
  void finish() override { end(net::CloseReason::kDone); }
  void abort() override { end(net::CloseReason::kDone); }
  bool is_open() const override { return !is_over; }
  int64_t buffered_bytes() const override { return 0; }

  // As the client closing its connection.
  void end(net::CloseReason reason) {
    if (is_over) return;
    is_over = true;
    auto call = std::move(on_close);
    on_close = nullptr;
    if (call) call(reason);
  }

  net::Headers headers;
  std::string body;
  bool is_over = false;
};

}  // namespace deepinfer::serve
