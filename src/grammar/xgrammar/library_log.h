// Warnings of the grammar library, which it otherwise prints: what it says it ignores is what it cannot do, and a
// request that asks for it is refused. One collector a thread.
#pragma once

#include <string>

namespace deepinfer::grammar {

// Collects the first warning of this thread from construction to destruction.
class WarningCollector {
 public:
  WarningCollector();
  ~WarningCollector();
  WarningCollector(const WarningCollector&) = delete;
  WarningCollector& operator=(const WarningCollector&) = delete;
  const std::string& first() const { return first_; }  // empty: none
  void take(const std::string& message) {
    if (first_.empty()) first_ = message;
  }

 private:
  WarningCollector* outer_;
  std::string first_;
};

}  // namespace deepinfer::grammar
