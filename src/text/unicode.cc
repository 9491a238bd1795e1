#include "text/unicode.h"

#include <algorithm>

#include "text/utf8.h"

namespace deepinfer::text {
namespace {

// Hangul syllables decompose by arithmetic (Unicode 3.12).
constexpr uint32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTailBase = 0x11A7;
constexpr uint32_t kNumVowels = 21, kNumTails = 28, kNumSyllables = 11172;

void append_folded_code_point(uint32_t c, std::string& out) {
  if (c >= kSyllableBase && c < kSyllableBase + kNumSyllables) {
    uint32_t s = c - kSyllableBase;
    append_utf8(kLeadBase + s / (kNumVowels * kNumTails), out);
    append_utf8(kVowelBase + s / kNumTails % kNumVowels, out);
    if (s % kNumTails != 0) append_utf8(kTailBase + s % kNumTails, out);
    return;
  }
  const uint32_t* end = kFoldKeys + kNumFolds;
  const uint32_t* at = std::lower_bound(kFoldKeys, end, c);
  if (at == end || *at != c) return append_utf8(c, out);
  auto i = at - kFoldKeys;
  out.append(reinterpret_cast<const char*>(kFoldPool) + kFoldOffsets[i],
             static_cast<std::size_t>(kFoldOffsets[i + 1] - kFoldOffsets[i]));
}

}  // namespace

void append_folded(std::string_view text, std::string& out) {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    unsigned char a = static_cast<unsigned char>(*p);
    if (a < 0x80) {
      out += static_cast<char>(a >= 'A' && a <= 'Z' ? a | 0x20 : a);
      ++p;
    } else {
      append_folded_code_point(next_code_point(p), out);
    }
  }
}

}  // namespace deepinfer::text
