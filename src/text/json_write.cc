// Writing JSON the way the reference prompts have it.

#include <charconv>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "text/json_tree.h"

namespace deepinfer::text {
namespace {

// Python's repr of a float: the shortest digits that read back equal; fixed layout for exponents -4 .. 15, always with
// a fraction; else one digit before the point and an exponent of at least two digits.
void append_float(std::string_view spelling, std::string& out) {
  double number = 0;
  auto read = std::from_chars(spelling.data(), spelling.data() + spelling.size(), number);
  if (read.ec != std::errc()) {  // out of the range of a double: the spelling is all there is
    out += spelling;
    return;
  }
  char buffer[64];
  auto written = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(written.ptr - buffer));
  std::size_t e = text.find('e');
  int exponent = 0;
  std::string_view exponent_text = text.substr(e + 1);
  if (exponent_text[0] == '+') exponent_text.remove_prefix(1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text;
    return;
  }
  std::string digits;
  std::string_view mantissa = text.substr(0, e);
  if (mantissa[0] == '-') out += '-';
  for (char c : mantissa) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < 0) {
    out += "0.";
    out.append(static_cast<std::size_t>(-exponent - 1), '0');
    out += digits;
    return;
  }
  auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out.append(digits, 0, whole);
  out += '.';
  out += digits.size() == whole ? "0" : digits.substr(whole);
}

void append_number(std::string_view spelling, std::string& out) {
  if (spelling.find_first_of(".eE") == spelling.npos) {
    out += spelling;
  } else {
    append_float(spelling, out);
  }
}

}  // namespace

std::vector<JsonValue> unique_members(JsonValue object) {
  std::vector<JsonValue> members;
  members.reserve(static_cast<std::size_t>(object.size()));
  std::unordered_map<std::string_view, std::size_t> position;
  for (JsonValue child : object) {
    auto [at, is_new] = position.emplace(child.key(), members.size());
    if (is_new) {
      members.push_back(child);
    } else {
      members[at->second] = child;
    }
  }
  return members;
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') [[likely]]
      continue;
    out.append(text, copied, i - copied);
    copied = i + 1;
    out += '\\';
    switch (c) {
      case '"':
        out += '"';
        break;
      case '\\':
        out += '\\';
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      default:
        out += "u00";
        out += kHex[c >> 4];
        out += kHex[c & 15];
    }
  }
  out.append(text, copied);
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  append_json_escaped(text, out);
  out += '"';
}

void append_json(JsonValue value, JsonStyle style, std::string& out) {
  const char* comma = style == JsonStyle::kSpaced ? ", " : ",";
  const char* colon = style == JsonStyle::kSpaced ? ": " : ":";
  const char* separator = "";
  switch (value.type()) {
    case JsonValue::Type::kMissing:
    case JsonValue::Type::kNull:
      out += "null";
      return;
    case JsonValue::Type::kFalse:
      out += "false";
      return;
    case JsonValue::Type::kTrue:
      out += "true";
      return;
    case JsonValue::Type::kNumber:
      append_number(value.text(), out);
      return;
    case JsonValue::Type::kString:
      append_json_string(value.text(), out);
      return;
    case JsonValue::Type::kArray:
      out += '[';
      for (JsonValue child : value) {
        out += separator;
        append_json(child, style, out);
        separator = comma;
      }
      out += ']';
      return;
    case JsonValue::Type::kObject:
      out += '{';
      for (JsonValue child : unique_members(value)) {
        out += separator;
        append_json_string(child.key(), out);
        out += colon;
        append_json(child, style, out);
        separator = comma;
      }
      out += '}';
      return;
  }
}

}  // namespace deepinfer::text
