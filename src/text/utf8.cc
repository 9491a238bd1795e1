#include "text/utf8.h"

#include <cstring>

namespace deepinfer::text {
namespace {

// The legal range of the second byte depends on the first (no overlong forms, no surrogates, nothing above U+10FFFF).
struct Lead {
  int length;
  unsigned char low, high;
};

Lead lead_of(unsigned char a) {
  if (a >= 0xC2 && a <= 0xDF) return {2, 0x80, 0xBF};
  if (a == 0xE0) return {3, 0xA0, 0xBF};
  if (a == 0xED) return {3, 0x80, 0x9F};
  if (a >= 0xE1 && a <= 0xEF) return {3, 0x80, 0xBF};
  if (a == 0xF0) return {4, 0x90, 0xBF};
  if (a >= 0xF1 && a <= 0xF3) return {4, 0x80, 0xBF};
  if (a == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length of the ASCII prefix, eight bytes at a time.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
    i += 8;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  if (text.empty()) return {};
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {.length = 1, .is_valid = true};
  Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {.length = 1};
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return {.length = i, .is_partial = true};
    unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    unsigned char b = byte(static_cast<std::size_t>(i));
    if (b < low || b > high) return {.length = i};
  }
  return {.length = lead.length, .is_valid = true};
}

bool is_valid_utf8(std::string_view text) {
  for (;;) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    Utf8Step step = utf8_step(text);
    if (!step.is_valid) return false;
    text.remove_prefix(static_cast<std::size_t>(step.length));
  }
}

void append_lossy(std::string_view text, std::string& out) {
  while (!text.empty()) {
    std::size_t n = ascii_prefix(text);
    bool is_valid = true;
    if (n == 0) {
      Utf8Step step = utf8_step(text);
      n = static_cast<std::size_t>(step.length);
      is_valid = step.is_valid;
    }
    out += is_valid ? text.substr(0, n) : kReplacement;
    text.remove_prefix(n);
  }
}

void append_utf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace deepinfer::text
