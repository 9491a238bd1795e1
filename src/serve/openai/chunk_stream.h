// A stream of chunks as chat and text completions have it: each begins with the same members, then its choices; at the
// end the usage if asked for, and data: [DONE], also after an error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "serve/api_error.h"
#include "serve/openai/wire.h"
#include "serve/responder.h"
#include "serve/sse.h"

namespace deepinfer::serve::openai {

class ChunkStream : public Responder {
 public:
  // `head`: the beginning of every chunk, an object whose last member is complete.
  ChunkStream(std::string head, bool includes_usage, bool returns_timings)
      : head_(std::move(head)), includes_usage_(includes_usage), returns_timings_(returns_timings) {}

  void begin(const CallPtr& call) override {
    sse_.emplace(call->exchange);
    sse_->start(call->headers);
  }
  void finish(const CallPtr&, const CallUsage& usage) override {
    if (includes_usage_ || returns_timings_) {
      JsonWriter w;
      w.begin_object();
      if (includes_usage_) write_usage(w, usage);
      if (returns_timings_) write_timings(w, usage);
      std::string tail = w.end_object().take();
      sse_->event(head_ + R"(,"choices":[],)" + tail.substr(1));
    }
    end();
  }
  void fail(const CallPtr& call, const ApiError& error) override {
    sse_->event(error_json(call->style, error, call->request_id));
    end();
  }
  void keep_alive() override { sse_->comment("keep-alive"); }

 protected:
  void send(std::string_view choices) { sse_->event(fmt::format("{},\"choices\":{}}}", head_, choices)); }

 private:
  void end() {
    sse_->event("[DONE]");
    sse_->finish();
  }

  std::string head_;
  bool includes_usage_, returns_timings_;
  std::optional<SseWriter> sse_;
};

}  // namespace deepinfer::serve::openai
