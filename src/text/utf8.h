// UTF-8: decoding, validation, repair.
//
// Ill-formed input is replaced by U+FFFD, one for each maximal subpart of an ill-formed sequence (Unicode 3.9, as
// WHATWG, Rust and Python do): F0 9F 98 'a' gives one, ED A0 80 gives three.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What stands at the start of a byte range.
struct Utf8Step {
  int length =
      0;  // bytes of the character, of its valid beginning, or of the ill-formed subpart; 0 only for empty input
  bool is_valid = false;    // a whole well-formed character
  bool is_partial = false;  // the input ends inside a character that is well-formed so far
};

// Classifies the first character of `text`.
Utf8Step utf8_step(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Appends `text` with every ill-formed subpart replaced by U+FFFD.
void append_lossy(std::string_view text, std::string& out);

void append_utf8(uint32_t code_point, std::string& out);

// Reads the code point at `p` of well-formed UTF-8 and moves `p` behind it.
inline uint32_t next_code_point(const char*& p) {
  auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  uint32_t a = byte(0);
  if (a < 0x80) {
    p += 1;
    return a;
  }
  if (a < 0xE0) {
    uint32_t c = (a & 0x1F) << 6 | (byte(1) & 0x3F);
    p += 2;
    return c;
  }
  if (a < 0xF0) {
    uint32_t c = (a & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    p += 3;
    return c;
  }
  uint32_t c = (a & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  p += 4;
  return c;
}

}  // namespace deepinfer::text
