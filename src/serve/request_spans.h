// The last requests that ended, for the step trace and for whoever wants each one. Owned by the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

namespace deepinfer::serve {

struct RequestSpan {
  using Time = std::chrono::steady_clock::time_point;
  std::string id;
  Time begin, end;
  std::optional<Time> first_token;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string finish;
  std::string traceparent;  // the request's header, unchecked
};

class RequestSpans {
 public:
  void add(RequestSpan span) {
    constexpr std::size_t kMost = 4096;
    if (on_add) on_add(span);
    spans_.push_back(std::move(span));
    if (spans_.size() > kMost) spans_.pop_front();
  }
  const std::deque<RequestSpan>& all() const { return spans_; }

  std::function<void(const RequestSpan&)> on_add;  // sees each one as it ends

 private:
  std::deque<RequestSpan> spans_;
};

}  // namespace deepinfer::serve
