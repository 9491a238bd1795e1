// Idempotency-Key: the same request sent again gets the answer of the first one instead of a second answer.
//
//   not seen      runs; a whole answer with status 200 is kept
//   running       409, try again
//   kept          the kept answer, with x-idempotent-replay: true; 422 if the body is another one
// Streams are not kept: the key only keeps two of them from running together. Owned by the loop.
#pragma once

#include <string>
#include <unordered_set>

#include "serve/call.h"
#include "serve/store.h"

namespace deepinfer::serve {

class Idempotency {
 public:
  Idempotency(std::chrono::seconds keep, int64_t max_bytes) : answers_(keep, max_bytes) {}

  // True if the call was answered here. Else it runs, and its answer will be kept.
  bool answer(const CallPtr& call);

 private:
  struct Kept {
    std::string digest;  // of path and body
    net::HttpResponse response;
  };
  Store<Kept> answers_;
  std::unordered_set<std::string> running_;
};

}  // namespace deepinfer::serve
