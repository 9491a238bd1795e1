// Traces for a collector of OpenTelemetry, over HTTP with JSON: one span for each request that was let in, from its
// admission to its end, with the first token as an event. A request that carries a `traceparent` is part of that trace.
//
//   RequestSpan --add--> kept --once a second--> POST URL/v1/traces
// What a collector does not take is dropped: traces never hold anything up. Owned by the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "net/loop.h"
#include "serve/request_spans.h"

namespace deepinfer::serve {

class OtlpExporter {
 public:
  // Fails if `url` is not http://HOST:PORT.
  static Result<std::unique_ptr<OtlpExporter>> create(net::Loop& loop, const std::string& url);

  void add(const RequestSpan& span);

 private:
  OtlpExporter(net::Loop& loop, std::string url, std::unique_ptr<net::HttpClient> client);
  void flush();
  void on_sent(bool is_taken, const std::string& why);

  std::string url_;
  std::unique_ptr<net::HttpClient> client_;
  std::vector<RequestSpan> spans_;
  bool is_sending_ = false, is_failing_ = false;
};

// The body of one export. `now` is the same moment on both clocks.
struct TwoClocks {
  std::chrono::steady_clock::time_point steady;
  std::chrono::system_clock::time_point system;
};
std::string otlp_body(const std::vector<RequestSpan>& spans, const TwoClocks& now);

}  // namespace deepinfer::serve
