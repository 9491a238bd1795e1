#include "serve/fields.h"

#include <algorithm>

namespace deepinfer::serve {

std::string describe(JsonValue v) {
  constexpr std::size_t kLongest = 60;
  switch (v.type()) {
    case JsonValue::Type::kMissing:
      return "nothing";
    case JsonValue::Type::kNull:
      return "null";
    case JsonValue::Type::kFalse:
      return "false";
    case JsonValue::Type::kTrue:
      return "true";
    case JsonValue::Type::kNumber:
      return std::string(v.text().substr(0, kLongest));
    case JsonValue::Type::kString: {
      std::string_view s = v.text();
      if (s.size() <= kLongest) return fmt::format("'{}'", s);
      std::size_t cut = kLongest;
      while (cut > 0 && (static_cast<unsigned char>(s[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
      return fmt::format("'{}...' of {} bytes", s.substr(0, cut), s.size());
    }
    case JsonValue::Type::kArray:
      return fmt::format("a list of {}", v.size());
    case JsonValue::Type::kObject:
      return fmt::format("an object of {} members", v.size());
  }
  return "";
}

ApiResult<text::JsonTree> parse_body(std::string body) {
  auto tree = text::JsonTree::parse(std::move(body));
  if (!tree) return tl::unexpected(invalid_request("the body is not JSON: " + tree.error().message));
  return std::move(*tree);
}

tl::unexpected<ApiError> wrong_value(std::string_view name, JsonValue v, std::string_view allowed) {
  return bad_field(name, fmt::format("{} is {}; allowed: {}", name, describe(v), allowed));
}

ApiResult<std::vector<std::string>> read_strings(std::string_view name, JsonValue v, std::size_t max_count,
                                                 std::size_t max_bytes) {
  std::vector<std::string> strings;
  auto add = [&](JsonValue s) -> ApiResult<> {
    if (!s.is_string() || s.text().empty())
      return wrong_value(name, s, fmt::format("a non-empty string or a list of up to {} of them", max_count));
    if (s.text().size() > max_bytes)
      return bad_field(name,
                       fmt::format("a string of {} has {} bytes; the limit is {}", name, s.text().size(), max_bytes));
    strings.emplace_back(s.text());
    return {};
  };
  if (!v.is_array()) {
    DI_TRY_VOID(add(v));
    return strings;
  }
  if (static_cast<std::size_t>(v.size()) > max_count)
    return bad_field(name, fmt::format("{} has {} entries; the limit is {}", name, v.size(), max_count));
  for (JsonValue s : v) DI_TRY_VOID(add(s));
  return strings;
}

ApiResult<std::vector<int32_t>> read_token_ids(std::string_view name, JsonValue v, std::size_t max_count,
                                               int32_t least) {
  if (!v.is_array()) return wrong_value(name, v, "a list of token ids");
  if (static_cast<std::size_t>(v.size()) > max_count)
    return bad_field(name, fmt::format("{} has {} entries; the limit is {}", name, v.size(), max_count));
  std::vector<int32_t> ids;
  ids.reserve(static_cast<std::size_t>(v.size()));
  for (JsonValue entry : v) {
    int32_t id = 0;
    if (!parse_number(entry, id) || id < least)
      return wrong_value(fmt::format("{}[{}]", name, ids.size()), entry,
                         fmt::format("a token id, a whole number >= {}", least));
    ids.push_back(id);
  }
  return ids;
}

std::string unknown_fields_header(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 16, kLongestName = 64;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    if (!out.empty()) out += ", ";
    for (char c : std::string_view(names[i]).substr(0, kLongestName)) {
      bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                      c == '-' || c == '.';
      out += is_plain ? c : '?';
    }
  }
  if (names.size() > kMostNames) out += fmt::format(", and {} more", names.size() - kMostNames);
  return out;
}

}  // namespace deepinfer::serve
