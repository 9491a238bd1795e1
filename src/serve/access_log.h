// One JSON line a request: who asked what, how it ended, how long it took. Never the text of prompts or answers unless
// the operator asked for it.
//
//   {"time", "id", "key", "peer", "method", "path", "status", "ms", "bytes", "prompt_tokens", ..., "finish", "error"}
//
// Owned by the loop.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/call.h"

namespace deepinfer::serve {

class AccessLog {
 public:
  // `target`: a file that is appended to, "-" for stderr, or "off".
  static Result<AccessLog> open(const std::string& target, bool logs_prompts);
  void write(const Call& call);

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stderr) std::fclose(file);
    }
  };
  std::unique_ptr<std::FILE, Close> file_;  // empty: off
  bool logs_prompts_ = false;
};

}  // namespace deepinfer::serve
