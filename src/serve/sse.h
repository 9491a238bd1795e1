// Server-sent events over one exchange.
//
//   [event: NAME\n] data: JSON\n \n        an event; the JSON holds no line break
//   : text\n\n                             a comment, which keeps proxies and clients waiting
// A reader that is too slow is dropped by the connection (net/http_server.h), so nothing here waits or grows.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "net/http_server.h"

namespace deepinfer::serve {

class SseWriter {
 public:
  explicit SseWriter(std::shared_ptr<net::Exchange> exchange) : exchange_(std::move(exchange)) {}

  // Sends status and headers; `extra` on top of those of an event stream.
  void start(net::Headers extra) {
    extra.insert(extra.begin(), {{"Content-Type", "text/event-stream; charset=utf-8"},
                                 {"Cache-Control", "no-store"},
                                 {"X-Accel-Buffering", "no"}});
    exchange_->start(200, extra);
  }
  void event(std::string_view data) {
    frame_.assign("data: ");
    send(data);
  }
  void event(std::string_view name, std::string_view data) {
    frame_.assign("event: ");
    frame_ += name;
    frame_ += "\ndata: ";
    send(data);
  }
  void comment(std::string_view text) {
    frame_.assign(": ");
    send(text);
  }
  void finish() { exchange_->finish(); }

 private:
  void send(std::string_view text) {
    frame_ += text;
    frame_ += "\n\n";
    exchange_->write(frame_);
  }

  std::shared_ptr<net::Exchange> exchange_;  // shared with the connection that carries it
  std::string frame_;
};

}  // namespace deepinfer::serve
