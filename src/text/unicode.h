// Character classes for pre-tokenising, and the fold that the compressed vocabulary compares by.
//
// Classes are those of Unicode 16. SPACE is White_Space without CR and LF, which are NEWLINE.
//
// fold(text) = NFKC, NFD, removal of every mark, lower case. It is computed code point by code point from one map,
// because
//   NFD(NFKC(x)) = NFKD(x)    (composing keeps canonical equivalence, and NFKD(x) is already in NFD), and
//   NFKD decomposes each code point by itself, then only reorders characters of non-zero combining class. All of these
//   are marks (general category M) and are removed next, so no order is left to get wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/unicode_tables.h"

namespace deepinfer::text {

enum CharClass : uint8_t {
  kOther = 0,  // control, format, private, unassigned
  kLetter = 1,
  kMark = 2,
  kNumber = 3,
  kPunctuation = 4,  // punctuation and symbols
  kSpace = 5,
  kNewline = 6,
};
inline constexpr uint8_t kClassMask = 7;
inline constexpr uint8_t kKanaOrHan = 8;  // flag: U+3040-30FF, U+4E00-9FA5

// Class and flag of a code point (up to U+10FFFF).
inline uint8_t char_class(uint32_t c) {
  return kClassPages[kClassPageIndex[c >> 7] * 128 + (c & 127)];
}

// Appends the fold of well-formed UTF-8.
void append_folded(std::string_view text, std::string& out);

}  // namespace deepinfer::text
