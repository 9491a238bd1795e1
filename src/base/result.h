// Errors that can happen: a value or an Error with a sentence for the user.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>
#include <tl/expected.hpp>

namespace deepinfer {

enum class Code {
  kInvalid,      // the caller's input is wrong; the message names the field, the value and the limit
  kNotFound,     // a file, tensor or name does not exist
  kCorrupt,      // bytes on disk or on the wire contradict their own description
  kUnsupported,  // legal elsewhere, not built here
  kExhausted,    // no memory, block or slot left
  kIo,           // the operating system refused
  kCancelled,
  kDeadline,
  kInternal,
};

struct Error {
  Code code = Code::kInternal;
  std::string message;
};

// Process exit code for an error: 2 for what the user can fix, 1 for the rest.
inline int exit_code(const Error& e) {
  return e.code == Code::kInternal ? 1 : 2;
}

template <typename T = void>
using Result = tl::expected<T, Error>;

template <typename... Args>
[[nodiscard]] tl::unexpected<Error> fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// DI_TRY(auto x, f()): x = value, or return the error from the enclosing function.
#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)
#define DI_TRY(target, expression) DI_TRY_IMPL(DI_CONCAT(di_result_, __LINE__), target, expression)
#define DI_TRY_IMPL(name, target, expression)                \
  auto name = (expression);                                  \
  if (!name) return tl::unexpected(std::move(name).error()); \
  target = std::move(*name)
// DI_TRY_VOID(f()): return the error, if there is one.
#define DI_TRY_VOID(expression)                                                                         \
  do {                                                                                                  \
    if (auto di_result = (expression); !di_result) return tl::unexpected(std::move(di_result).error()); \
  } while (false)

}  // namespace deepinfer
