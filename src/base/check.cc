#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include <execinfo.h>
#include <unistd.h>

namespace deepinfer {

void check_failed(const char* file, int line, const char* condition, const std::string& why) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, condition, why.empty() ? "" : ": ", why.c_str());
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::abort();
}

}  // namespace deepinfer
