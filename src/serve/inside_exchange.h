// An exchange without a client: a request that the service makes of itself, as the lines of a batch are. Keeps the
// whole answer and hands it over when it is there.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "net/http_server.h"

namespace deepinfer::serve {

class InsideExchange final : public net::Exchange {
 public:
  // `done` gets status and body, once; not after cancel().
  using Done = std::function<void(int status, const net::Headers& headers, std::string body)>;
  InsideExchange(net::HttpRequest r, Done done) : Exchange(std::move(r)), done_(std::move(done)) {}

  void respond(net::HttpResponse r) override {
    if (!is_open_) return;
    status = r.status;
    bytes_sent = static_cast<int64_t>(r.body.size());
    end(net::CloseReason::kDone);
    if (auto done = std::exchange(done_, nullptr)) done(r.status, r.headers, std::move(r.body));
  }
  void start(int, const net::Headers&) override { cancel(); }  // streams are not asked for
  void write(std::string_view) override {}
  void finish() override {}
  void abort() override { cancel(); }
  bool is_open() const override { return is_open_; }
  int64_t buffered_bytes() const override { return 0; }

  // As a client that goes away.
  void cancel() {
    done_ = nullptr;
    end(net::CloseReason::kPeer);
  }

 private:
  void end(net::CloseReason reason) {
    if (!std::exchange(is_open_, false)) return;
    if (auto call = std::exchange(on_close, nullptr)) call(reason);
  }

  Done done_;
  bool is_open_ = true;
};

}  // namespace deepinfer::serve
