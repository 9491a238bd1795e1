#include "text/json_window.h"

namespace deepinfer::text {
namespace {
constexpr std::string_view kClosing = "\n```";
constexpr std::string_view kFence = "```", kJsonFence = "```json";
}  // namespace

void JsonWindow::push(std::string_view text, std::string& out) {
  for (char c : text) {
    if (place_ == Place::kBefore) {
      before(c, out);
    } else if (place_ == Place::kInside) {
      inside(c, out);
    }
  }
}

void JsonWindow::before(char c, std::string& out) {
  if (c == '{' || c == '[') {
    place_ = Place::kInside;
    inside(c, out);
  } else if (c == '\n' && (line_end_.ends_with(kFence) || line_end_.ends_with(kJsonFence))) {
    place_ = Place::kInside;
  } else {
    if (line_end_.size() == kJsonFence.size()) line_end_.erase(0, 1);
    line_end_ += c;
  }
}

void JsonWindow::inside(char c, std::string& out) {
  if (c != kClosing[matched_]) {
    // The closing fence begins with its only line break, so a mismatch can only restart there.
    out += kClosing.substr(0, matched_);
    matched_ = 0;
  }
  if (c != kClosing[matched_]) {
    out += c;
    return;
  }
  if (++matched_ < kClosing.size()) return;
  matched_ = 0;
  place_ = Place::kAfter;
}

void JsonWindow::finish(std::string& out) {
  out += kClosing.substr(0, matched_);
  matched_ = 0;
}

}  // namespace deepinfer::text
