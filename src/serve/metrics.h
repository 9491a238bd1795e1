// What is measured, for Prometheus (serving.md 9): names begin with deepinfer_.
//
// Owned by the loop.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "deepinfer/engine.h"
#include "serve/overload.h"

namespace deepinfer::serve {

class Metrics {
 public:
  explicit Metrics(std::string_view version);
  ~Metrics();

  void http_request(std::string_view route, int status, double seconds);
  void rejected(std::string_view reason);
  void cancelled(std::string_view state);
  void finished(std::string_view reason);
  // Of each prompt of a request that was answered: its tokens, what the cache had of it, where its time went.
  void prompt(const Usage& usage);
  void generated(int64_t tokens);
  void first_token(double seconds);
  void between_tokens(double seconds);
  void end_to_end(double seconds, int64_t generated, double first_token_s);

  // Values that are read off when the page is made.
  struct Gauges {
    EngineStats engine;
    int requests = 0, connections = 0;
    double queue_work_s = 0, predicted_wait_s = 0;
    bool is_ready = false;
    Rung rung = Rung::kNone;
  };
  std::string text(const Gauges& now);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace deepinfer::serve
