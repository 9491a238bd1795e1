// Success or a sentence, for the public interface.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace deepinfer {

struct Failure {
  bool is_user_error = true;  // something the caller can fix
  std::string message;
};

template <typename T>
class Outcome {
 public:
  Outcome(T value) : value_(std::move(value)) {}
  Outcome(Failure failure) : failure_(std::move(failure)) {}
  explicit operator bool() const { return value_.has_value(); }
  T& value() { return value_.value(); }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  const Failure& failure() const { return failure_; }

 private:
  std::optional<T> value_;
  Failure failure_;
};

}  // namespace deepinfer
