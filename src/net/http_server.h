// An HTTP/1.1 server over TCP, TLS and unix sockets that hands whole requests to a handler.
//
//   listener --> connection --request--> handler(Exchange) --respond | start, write ..., finish--> connection
//
//   A connection reads ahead while a request is being answered, so that a client that goes away is noticed at once.
//   What a client does not take is kept up to HttpLimits::max_buffered_bytes; beyond that, or without progress for
//   write_timeout, the connection is dropped. Whatever waits for a client has a limit.
//
// Everything runs on the loop's thread. Needs no lock and may be called from the loop only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/http.h"
#include "net/loop.h"

namespace deepinfer::net {

struct HttpLimits {
  int64_t max_body_bytes = 32 << 20;
  int64_t max_total_body_bytes = int64_t{1} << 30;  // of all requests that are being read or answered, headers included
  int max_header_bytes = 32 << 10;
  int max_connections = 8192;
  int64_t max_buffered_bytes = 1 << 20;  // of one stream that its reader does not take
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds idle_timeout{75'000};   // between requests
  std::chrono::milliseconds write_timeout{30'000};  // without any progress
};

struct ListenAddress {
  std::string host = "127.0.0.1";
  int port = 8000;        // 0: any free one
  std::string unix_path;  // instead of host and port
};

struct TlsFiles {
  std::string certificate, key;  // PEM; both or none
};

enum class CloseReason {
  kDone,        // the exchange was answered
  kPeer,        // the client went away
  kSlowReader,  // the client did not take what was sent
};

// One request and the way to answer it. Held by the connection until it is answered, and by whoever answers.
class Exchange {
 public:
  explicit Exchange(HttpRequest r) : request(std::move(r)) {}
  virtual ~Exchange() = default;

  // The whole answer. Or, in pieces: start(), write() any number of times, finish(). Calls after the end, or after the
  // client went away, do nothing.
  virtual void respond(HttpResponse response) = 0;
  virtual void start(int status, const Headers& headers) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void finish() = 0;
  // Ends the connection so that the client sees a cut answer.
  virtual void abort() = 0;

  virtual bool is_open() const = 0;  // not yet answered, client still there
  virtual int64_t buffered_bytes() const = 0;

  HttpRequest request;
  // Called once, when the exchange ends for whatever reason. May drop references to the exchange.
  std::function<void(CloseReason)> on_close;
  int status = 0;          // of the answer; 0 before it
  int64_t bytes_sent = 0;  // of bodies
  Loop::Clock::time_point begin = Loop::Clock::now();
};

struct HttpServerOptions {
  std::vector<ListenAddress> addresses;
  TlsFiles tls;  // for TCP addresses
  HttpLimits limits;
  std::function<void(std::shared_ptr<Exchange>)> handler;
  // The answer to a request that cannot be read: bad syntax, too large, too slow, too many connections.
  std::function<HttpResponse(int status, const std::string& message)> refuse;
};

class HttpServer {
 public:
  // Binds all addresses. Fails with the address and the reason.
  static Result<std::unique_ptr<HttpServer>> create(Loop& loop, HttpServerOptions options);
  virtual ~HttpServer() = default;

  virtual std::vector<std::string> urls() const = 0;  // with the ports that were taken
  virtual int num_connections() const = 0;
  // From now on every answer ends its connection and idle connections are closed.
  virtual void stop_keeping_alive() = 0;
  // Reads certificate and key anew, for connections to come.
  virtual Result<void> reload_tls() = 0;
};

}  // namespace deepinfer::net
