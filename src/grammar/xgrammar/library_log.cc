#include "grammar/xgrammar/library_log.h"

#include <stdexcept>

namespace deepinfer::grammar {
namespace {

thread_local WarningCollector* collector = nullptr;

}  // namespace

WarningCollector::WarningCollector() : outer_(collector) {
  collector = this;
}

WarningCollector::~WarningCollector() {
  collector = outer_;
}

}  // namespace deepinfer::grammar

// The hooks that the library calls when it is built with XGRAMMAR_LOG_CUSTOMIZE (cmake/xgrammar.cmake).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level == kWarning && deepinfer::grammar::collector != nullptr) deepinfer::grammar::collector->take(message);
}

}  // namespace xgrammar
