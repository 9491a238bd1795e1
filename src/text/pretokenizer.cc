#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

constexpr uint8_t kEnd = 7;  // beside the CharClass values: end of text, or a character outside the segment

bool is_ascii_letter(char c) {
  char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z';
}

bool is_word(uint8_t c) {
  return c == kLetter || c == kMark;
}
bool is_white(uint8_t c) {
  return c == kSpace || c == kNewline;
}

// Which characters a scan may touch.
enum class Segment {
  kRest,       // what the first two splits leave over
  kKanaOrHan,  // a match of the second split
  kAll,        // the whole text
};

// Class of the character at `p` as the segment sees it; `next` is set behind it.
template <Segment kSegment>
inline uint8_t peek(const char* p, const char* end, const char*& next) {
  if (p == end) return kEnd;
  next = p;
  uint8_t c = char_class(next_code_point(next));
  if constexpr (kSegment == Segment::kAll) return c & kClassMask;
  if constexpr (kSegment == Segment::kKanaOrHan) return c & kKanaOrHan ? c & kClassMask : kEnd;
  return (c & kKanaOrHan) || c == kNumber ? kEnd : c;
}

template <Segment kSegment, typename Belongs>
inline const char* run(const char* p, const char* end, Belongs belongs) {
  const char* next = p;
  while (belongs(peek<kSegment>(p, end, next))) p = next;
  return p;
}

// \s*[\r\n]+ | \s+(?!\S) | \s+ at white space.
template <Segment kSegment, bool kBreakAfterNewlines>
const char* white_space_end(const char* p, const char* end) {
  const char* next = p;
  const char* last = p;  // the run's last character
  const char* behind_newline = nullptr;
  const char* q = p;
  uint8_t c;
  while (is_white(c = peek<kSegment>(q, end, next))) {
    last = q;
    q = next;
    if (c == kNewline) behind_newline = q;
  }
  if (kBreakAfterNewlines && behind_newline != nullptr) return behind_newline;
  if (c == kEnd || last == p) return q;
  return last;
}

// One alternative of the third split, or a gap.
template <Segment kSegment>
const char* third_split(const char* p, const char* end) {
  const char* second = p;
  uint8_t c = peek<kSegment>(p, end, second);
  if (is_word(c)) return run<kSegment>(second, end, is_word);

  const char* third = second;
  uint8_t d = peek<kSegment>(second, end, third);
  auto punctuation_end = [&](const char* q) {
    q = run<kSegment>(q, end, [](uint8_t x) { return x == kPunctuation; });
    if (kSegment == Segment::kKanaOrHan) return q;  // CR and LF lie outside
    while (q != end && (*q == '\r' || *q == '\n')) ++q;
    return q;
  };
  if (c == kPunctuation) {
    bool is_ascii = static_cast<unsigned char>(*p) < 0x80;
    if (!is_ascii || second == end || !is_ascii_letter(*second)) return punctuation_end(second);
    while (second != end && is_ascii_letter(*second)) ++second;
    return second;
  }
  if (c != kNewline && is_word(d)) return run<kSegment>(third, end, is_word);
  if (*p == ' ' && d == kPunctuation) return punctuation_end(third);
  if (is_white(c)) return white_space_end<kSegment, true>(p, end);

  // A gap reaches to the first place where something matches: anything but an unmatched character, or one before a
  // letter.
  while (d == kOther) {
    const char* q = third;
    uint8_t after = peek<kSegment>(third, end, q);
    if (is_word(after)) break;
    second = third;
    third = q;
    d = after;
  }
  return second;
}

const char* deepseek_end(const char* p, const char* end) {
  const char* next = p;
  uint8_t c = char_class(next_code_point(next));
  if (c & kKanaOrHan) return third_split<Segment::kKanaOrHan>(p, end);
  if (c != kNumber) return third_split<Segment::kRest>(p, end);
  for (int i = 1; i < 3 && peek<Segment::kAll>(next, end, p) == kNumber; ++i) next = p;
  return next;
}

// Length of an English contraction at an apostrophe, 0 if there is none.
int contraction(const char* p, const char* end) {
  if (*p != '\'' || end - p < 2) return 0;
  char a = p[1], b = end - p > 2 ? p[2] : '\0';
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  bool is_long = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
  return is_long ? 3 : 0;
}

const char* gpt2_end(const char* p, const char* end) {
  constexpr Segment kAll = Segment::kAll;
  if (int n = contraction(p, end)) return p + n;
  const char* next = p;
  uint8_t c = peek<kAll>(p, end, next);
  if (*p == ' ') {
    const char* behind = next;
    uint8_t d = peek<kAll>(next, end, behind);
    if (!is_white(d) && d != kEnd) {
      c = d;
      next = behind;
    }
  }
  if (is_white(c)) return white_space_end<kAll, false>(p, end);
  if (c == kLetter) return run<kAll>(next, end, [](uint8_t x) { return x == kLetter; });
  if (c == kNumber) return run<kAll>(next, end, [](uint8_t x) { return x == kNumber; });
  return run<kAll>(next, end, [](uint8_t x) { return x != kLetter && x != kNumber && !is_white(x) && x != kEnd; });
}

}  // namespace

const char* piece_end(SplitScheme scheme, const char* begin, const char* end) {
  return scheme == SplitScheme::kDeepSeek ? deepseek_end(begin, end) : gpt2_end(begin, end);
}

}  // namespace deepinfer::text
