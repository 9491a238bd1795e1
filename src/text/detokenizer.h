// Token ids to text, a token at a time, at constant cost a byte.
//
// A token that ends inside a character is held back whole, as the reference does, until a later token completes the
// character. Bytes that can no longer become a character are U+FFFD at once; an added token is a border. Pieces joined,
// and what finish() gives, equal Tokenizer::decode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::text {

class Tokenizer;

class Detokenizer {
 public:
  // The tokenizer must outlive this. `skip_special` drops tokens flagged special, as if they had not been there.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Appends what became final with `id`. Stop ids are the caller's business: do not push them.
  void push(int32_t id, std::string& text);

  // End of the sequence. A character cut short becomes U+FFFD (raw completions) or nothing (chat).
  enum class CutCharacter { kReplace, kDrop };
  void finish(std::string& text, CutCharacter cut = CutCharacter::kReplace);

  // Bytes of the character that is not complete yet, 0 to 3.
  int num_pending() const { return static_cast<int>(pending_.size()); }

 private:
  void push_bytes(std::string_view bytes);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;     // complete characters before the pending one
  std::string pending_;  // beginning of a character
};

}  // namespace deepinfer::text
