#include "text/detokenizer.h"

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace deepinfer::text {

void Detokenizer::push(int32_t id, std::string& text) {
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (tokenizer_->is_added(id)) {
    if (skip_special_ && tokenizer_->is_special(id)) return;
    finish(text);
    text += bytes;
    return;
  }
  push_bytes(bytes);
  if (!pending_.empty()) return;
  text += held_;
  held_.clear();
}

void Detokenizer::push_bytes(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    pending_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    Utf8Step step = utf8_step(bytes);
    if (step.is_partial) {
      pending_ = bytes;
      return;
    }
    auto n = static_cast<std::size_t>(step.length);
    held_ += step.is_valid ? bytes.substr(0, n) : kReplacement;
    bytes.remove_prefix(n);
  }
}

void Detokenizer::finish(std::string& text, CutCharacter cut) {
  text += held_;
  if (!pending_.empty() && cut == CutCharacter::kReplace) text += kReplacement;
  held_.clear();
  pending_.clear();
}

}  // namespace deepinfer::text
