// Requests checked from tables: each field's name, type, range and what is done with it, in one line.
//
//   const FieldTable<Chat> kFields = {
//       number("temperature", &Chat::temperature, 0, 100),
//       ignored<Chat>("user"),
//       refused<Chat>("audio", "audio output is not built"),
//   };
//   read_fields(body, kFields, chat, unknown)
//
// null counts as absent. Every error names the field, the value and what is allowed. Fields that no line names are
// accepted; their names are reported to the caller.
#pragma once

#include <charconv>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "serve/api_error.h"
#include "text/json_tree.h"

namespace deepinfer::serve {

using text::JsonValue;

template <typename T>
struct Field {
  std::string name;
  std::function<ApiResult<>(JsonValue, T&)> read;
};
template <typename T>
using FieldTable = std::vector<Field<T>>;

// What a value is, for messages: numbers as spelled, strings quoted and cut, else the type's name.
std::string describe(JsonValue v);
[[nodiscard]] tl::unexpected<ApiError> wrong_value(std::string_view name, JsonValue v, std::string_view allowed);

// The value of a member that may be optional<X>.
template <typename M>
struct Inner {
  using Type = M;
};
template <typename M>
struct Inner<std::optional<M>> {
  using Type = M;
};

template <typename N>
bool parse_number(JsonValue v, N& out) {
  std::string_view s = v.text();
  if (!v.is_number()) return false;
  auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), out);
  return ec == std::errc() && end == s.data() + s.size();
}
inline int64_t integer_or(JsonValue v, int64_t otherwise) {
  int64_t n = 0;
  return parse_number(v, n) ? n : otherwise;
}

template <typename T, typename B, typename M>
Field<T> number_of(std::string_view name, M B::* member, double low, double high) {
  return {std::string(name), [=, n = std::string(name)](JsonValue v, T& out) -> ApiResult<> {
            double x = 0;
            if (!parse_number(v, x) || !(x >= low && x <= high))
              return wrong_value(n, v, fmt::format("a number from {} to {}", low, high));
            out.*member = static_cast<typename Inner<M>::Type>(x);
            return {};
          }};
}

template <typename T, typename B, typename M>
Field<T> integer_of(std::string_view name, M B::* member, typename Inner<M>::Type low, typename Inner<M>::Type high) {
  return {std::string(name), [=, n = std::string(name)](JsonValue v, T& out) -> ApiResult<> {
            typename Inner<M>::Type x{};
            if (!parse_number(v, x) || x < low || x > high)
              return wrong_value(n, v, fmt::format("a whole number from {} to {}", low, high));
            out.*member = x;
            return {};
          }};
}

template <typename T, typename B, typename M>
Field<T> boolean_of(std::string_view name, M B::* member) {
  return {std::string(name), [=, n = std::string(name)](JsonValue v, T& out) -> ApiResult<> {
            if (!v.is_bool()) return wrong_value(n, v, "true or false");
            out.*member = v.is_true();
            return {};
          }};
}

template <typename T, typename B, typename M>
Field<T> string_of(std::string_view name, M B::* member, std::size_t max_bytes) {
  return {std::string(name), [=, n = std::string(name)](JsonValue v, T& out) -> ApiResult<> {
            if (!v.is_string()) return wrong_value(n, v, "a string");
            if (v.text().size() > max_bytes)
              return bad_field(n, fmt::format("{} has {} bytes; the limit is {}", n, v.text().size(), max_bytes));
            out.*member = std::string(v.text());
            return {};
          }};
}

// Anything of its own kind: `read` gets the value and reports what is wrong with it.
template <typename T>
Field<T> custom(std::string_view name, std::function<ApiResult<>(JsonValue, T&)> read) {
  return {std::string(name), std::move(read)};
}
// Has no effect here, whatever it holds; or is read elsewhere.
template <typename T>
Field<T> ignored(std::string_view name) {
  return {std::string(name), [](JsonValue, T&) -> ApiResult<> { return {}; }};
}
// Cannot be honoured, so it is not accepted. false, 0, "" and empty lists and objects ask for nothing and pass.
template <typename T>
Field<T> refused(std::string_view name, std::string_view reason) {
  return {std::string(name), [n = std::string(name), why = std::string(reason)](JsonValue v, T&) -> ApiResult<> {
            bool is_neutral = v.type() == JsonValue::Type::kFalse || (v.is_string() && v.text().empty()) ||
                              (v.is_number() && v.text() == "0") || ((v.is_array() || v.is_object()) && v.size() == 0);
            if (is_neutral) return {};
            return tl::unexpected(ApiError{.message = fmt::format("{} ({}) is not supported: {}", n, describe(v), why),
                                           .param = n,
                                           .code = "unsupported"});
          }};
}

// One table of several.
template <typename T>
FieldTable<T> joined(std::initializer_list<FieldTable<T>> tables) {
  FieldTable<T> all;
  for (const FieldTable<T>& t : tables) all.insert(all.end(), t.begin(), t.end());
  return all;
}

ApiResult<text::JsonTree> parse_body(std::string body);

// Reads the members of `body` into `out`; names that no line knows are appended to `unknown`.
template <typename T>
ApiResult<> read_fields(JsonValue body, const FieldTable<T>& table, T& out, std::vector<std::string>& unknown) {
  if (!body.is_object()) return api_fail(400, "", "the request must be a JSON object");
  for (JsonValue member : body) {
    const Field<T>* field = nullptr;
    for (const Field<T>& f : table) {
      if (f.name == member.key()) field = &f;
    }
    if (field == nullptr) {
      unknown.emplace_back(member.key());
    } else if (member.is_given()) {
      DI_TRY_VOID(field->read(member, out));
    }
  }
  return {};
}

// A string or a list of strings.
ApiResult<std::vector<std::string>> read_strings(std::string_view name, JsonValue v, std::size_t max_count,
                                                 std::size_t max_bytes);
// A list of token ids; `least` is -1 where that has a meaning.
ApiResult<std::vector<int32_t>> read_token_ids(std::string_view name, JsonValue v, std::size_t max_count,
                                               int32_t least = 0);

// The names of unknown fields as a header may carry them.
std::string unknown_fields_header(const std::vector<std::string>& names);

}  // namespace deepinfer::serve
