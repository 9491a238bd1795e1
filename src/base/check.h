// Errors that cannot happen: log, print the stack, end the process. A broken cache must not answer.
#pragma once

#include <string>

#include <fmt/format.h>

namespace deepinfer {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& why) noexcept;

}  // namespace deepinfer

// DI_CHECK(condition, "why {}", x)
#define DI_CHECK(condition, ...)                                                                \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::deepinfer::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

// Only in loops where the cost shows in a profile.
#ifdef NDEBUG
#define DI_DCHECK(condition, ...) \
  do {                            \
  } while (false)
#else
#define DI_DCHECK(condition, ...) DI_CHECK(condition, __VA_ARGS__)
#endif
