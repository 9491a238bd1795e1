#include "weights/json_scanner.h"

#include <charconv>

#include <fmt/format.h>

namespace deepinfer::weights {
namespace {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 63));
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

}  // namespace

bool JsonScanner::fail(std::string reason) {
  if (error_.empty()) error_ = fmt::format("{} at byte {}", reason, at_);
  return false;
}

void JsonScanner::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
    ++at_;
}

bool JsonScanner::consume(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool JsonScanner::expect(char c) {
  return consume(c) || fail(fmt::format("'{}' expected", c));
}

bool JsonScanner::at_end() {
  skip_space();
  return at_ == text_.size();
}

bool JsonScanner::hex4(uint32_t& out) {
  if (text_.size() - at_ < 4) return fail("cut escape");
  auto [end, ec] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, out, 16);
  if (ec != std::errc() || end != text_.data() + at_ + 4) return fail("bad escape");
  at_ += 4;
  return true;
}

bool JsonScanner::string(std::string& out) {
  out.clear();
  if (!expect('"')) return false;
  while (true) {
    std::size_t run = at_;
    while (run < text_.size() && text_[run] != '"' && text_[run] != '\\' &&
           static_cast<unsigned char>(text_[run]) >= 0x20)
      ++run;
    out.append(text_, at_, run - at_);
    at_ = run;
    if (at_ >= text_.size()) return fail("unterminated string");
    char c = text_[at_++];
    if (c == '"') return true;
    if (c != '\\') return fail("control character in a string");
    if (at_ >= text_.size()) return fail("unterminated string");
    char escape = text_[at_++];
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (auto i = kFrom.find(escape); i != std::string_view::npos) {
      out += kTo[i];
      continue;
    }
    uint32_t code = 0, low = 0;
    if (escape != 'u') return fail("bad escape");
    if (!hex4(code)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      if (text_.substr(at_, 2) != "\\u") return fail("half of a surrogate pair");
      at_ += 2;
      if (!hex4(low)) return false;
      if (low < 0xdc00 || low > 0xdfff) return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      return fail("half of a surrogate pair");
    }
    append_utf8(out, code);
  }
}

bool JsonScanner::integer(int64_t& out) {
  skip_space();
  auto [end, ec] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), out);
  if (ec == std::errc::result_out_of_range) return fail("number out of range");
  if (ec != std::errc()) return fail("whole number expected");
  at_ = static_cast<std::size_t>(end - text_.data());
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    return fail("whole number expected");
  return true;
}

bool JsonScanner::skip_value(int max_depth) {
  if (max_depth == 0) return fail("nested too deeply");
  skip_space();
  if (at_ >= text_.size()) return fail("value expected");
  std::string ignored;
  switch (text_[at_]) {
    case '{':
      return object([&](const std::string&) { return skip_value(max_depth - 1); });
    case '[':
      return array([&] { return skip_value(max_depth - 1); });
    case '"':
      return string(ignored);
    default:
      break;
  }
  std::size_t begin = at_;
  while (at_ < text_.size() &&
         std::string_view("+-.0123456789abcdefghijklmnopqrstuvwxyzE").find(text_[at_]) != std::string_view::npos)
    ++at_;
  auto word = text_.substr(begin, at_ - begin);
  if (word.empty()) return fail("value expected");
  if (word == "true" || word == "false" || word == "null") return true;
  double number;
  auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), number);
  return (ec == std::errc() && end == word.data() + word.size()) || fail("value expected");
}

}  // namespace deepinfer::weights
