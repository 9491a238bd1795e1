#include "grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/json.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {
namespace {

using std::string_view;

// Keywords that change what is valid and that the library does not look at.
constexpr std::array kIgnored = {
    "not",          "if",       "then",        "else",        "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains", "additionalItems",   "$dynamicRef",
    "$recursiveRef"};
// In the library's order: the first that is present decides alone.
constexpr std::array kDeciding = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::array kAnnotations = {
    "title",       "description", "default",  "example",     "examples",         "$schema",        "$id",
    "id",          "$comment",    "$anchor",  "readOnly",    "writeOnly",        "deprecated",     "$defs",
    "definitions", "format",      "nullable", "$vocabulary", "contentMediaType", "contentEncoding"};

constexpr std::array kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::array kOfStrings = {"minLength", "maxLength", "pattern"};
constexpr std::array kOfArrays = {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems", "uniqueItems"};
constexpr std::array kOfObjects = {"properties",    "required",      "additionalProperties", "patternProperties",
                                   "propertyNames", "minProperties", "maxProperties",        "unevaluatedProperties"};
// Without a type these make the library take the schema for one of an object or an array.
constexpr std::array kImplyObject = {"properties", "additionalProperties", "unevaluatedProperties"};
constexpr std::array kImplyArray = {"items", "prefixItems", "unevaluatedItems"};

template <std::size_t N>
bool is_in(string_view key, const std::array<const char*, N>& keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

template <std::size_t N>
const char* first_of(const json::object& schema, const std::array<const char*, N>& keys) {
  for (const char* key : keys) {
    if (schema.contains(key)) return key;
  }
  return nullptr;
}

bool has_type(const json::value& value, string_view type) {
  bool is_whole =
      value.is_int64() || value.is_uint64() ||
      (value.is_double() && value.as_double() == static_cast<double>(static_cast<int64_t>(value.as_double())));
  return (type == "string" && value.is_string()) || (type == "boolean" && value.is_bool()) ||
         (type == "null" && value.is_null()) || (type == "array" && value.is_array()) ||
         (type == "object" && value.is_object()) || (type == "number" && value.is_number()) ||
         (type == "integer" && value.is_number() && is_whole);
}

class Checker {
 public:
  // `has_default_type`: property names, which are strings without saying so.
  Result<void> schema(const json::value& value, const std::string& place, bool has_default_type = false) const {
    if (value.is_bool()) return {};
    if (!value.is_object()) return fail(Code::kInvalid, "{}: a schema is an object or a boolean", place);
    const json::object& o = value.as_object();
    if (const char* key = first_of(o, kIgnored)) return unsupported(key, place);
    if (const json::value* unique = o.if_contains("uniqueItems"); unique && *unique != json::value(false))
      return unsupported("uniqueItems", place);
    DI_TRY_VOID(decided(o, place));
    if (!has_default_type) DI_TRY_VOID(typed(o, place));
    DI_TRY_VOID(required(o, place));
    return parts(o, place);
  }

 private:
  static tl::unexpected<Error> unsupported(string_view key, string_view place) {
    return fail(Code::kUnsupported, "{}: the keyword '{}' is not supported", place, key);
  }

  // A deciding keyword stands alone, but for annotations and, beside const and enum, their type.
  Result<void> decided(const json::object& o, const std::string& place) const {
    const char* deciding = first_of(o, kDeciding);
    if (deciding == nullptr) return {};
    bool lists_values = deciding == string_view("const") || deciding == string_view("enum");
    for (const auto& [key, value] : o) {
      if (key == deciding || is_in(key, kAnnotations) || (lists_values && key == "type")) continue;
      if (!is_known(key)) continue;
      return fail(Code::kUnsupported, "{}: the keyword '{}' beside '{}' is not supported", place, string_view(key),
                  deciding);
    }
    if (!lists_values || !o.contains("type")) return {};
    const json::value& listed = o.at(deciding);
    auto check = [&](const json::value& v) -> Result<void> {
      if (is_of_types(v, o.at("type"))) return {};
      return fail(Code::kInvalid, "{}: {} {} is not of the type beside it", place, deciding, json::dump(v));
    };
    if (deciding == string_view("const") || !listed.is_array()) return check(listed);
    for (const json::value& v : listed.as_array()) DI_TRY_VOID(check(v));
    return {};
  }

  static bool is_known(string_view key) {
    return key == "type" || is_in(key, kDeciding) || is_in(key, kOfNumbers) || is_in(key, kOfStrings) ||
           is_in(key, kOfArrays) || is_in(key, kOfObjects);
  }

  static bool is_of_types(const json::value& v, const json::value& types) {
    if (types.is_string()) return has_type(v, types.as_string());
    if (!types.is_array()) return true;  // the compiler names what is wrong
    return std::any_of(types.as_array().begin(), types.as_array().end(),
                       [&](const json::value& t) { return t.is_string() && has_type(v, t.as_string()); });
  }

  // Without a type the library takes keywords of numbers and strings, and some others, for no constraint.
  Result<void> typed(const json::object& o, const std::string& place) const {
    if (o.contains("type") || first_of(o, kDeciding) || first_of(o, kImplyObject) || first_of(o, kImplyArray))
      return {};
    for (const auto& [key, value] : o) {
      if (is_known(key))
        return fail(Code::kUnsupported, "{}: the keyword '{}' needs 'type' beside it", place, string_view(key));
    }
    return {};
  }

  Result<void> required(const json::object& o, const std::string& place) const {
    const json::value* names = o.if_contains("required");
    if (names == nullptr || !names->is_array()) return {};
    const json::value* properties = o.if_contains("properties");
    for (const json::value& name : names->as_array()) {
      if (!name.is_string())
        return fail(Code::kInvalid, "{}: 'required' holds {}, not a name", place, json::dump(name));
      if (properties != nullptr && properties->is_object() && properties->as_object().contains(name.as_string()))
        continue;
      return fail(Code::kUnsupported, "{}: 'required' names '{}', which 'properties' does not declare", place,
                  string_view(name.as_string()));
    }
    return {};
  }

  Result<void> parts(const json::object& o, const std::string& place) const {
    for (const auto& [key, value] : o) {
      std::string at = place + '/' + std::string(key);
      if (key == "pattern" && value.is_string()) DI_TRY_VOID(pattern(value.as_string(), at));
      if (key == "format" && !value.is_string()) return fail(Code::kInvalid, "{} is not a string", at);
      bool is_map = key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
      bool is_list = key == "anyOf" || key == "oneOf" || key == "allOf" || key == "prefixItems";
      bool is_schema = key == "items" || key == "additionalProperties" || key == "propertyNames" ||
                       key == "unevaluatedProperties" || key == "unevaluatedItems";
      if (is_map && value.is_object()) {
        for (const auto& [name, part] : value.as_object()) {
          if (key == "patternProperties") DI_TRY_VOID(pattern(name, at));
          DI_TRY_VOID(schema(part, at + '/' + std::string(name)));
        }
      } else if (is_list && value.is_array()) {
        for (std::size_t i = 0; i < value.as_array().size(); ++i)
          DI_TRY_VOID(schema(value.as_array()[i], fmt::format("{}/{}", at, i)));
      } else if (is_schema) {
        DI_TRY_VOID(schema(value, at, key == "propertyNames"));
      }
    }
    return {};
  }

  static Result<void> pattern(string_view text, const std::string& place) {
    auto checked = check_pattern(text, false);
    if (!checked) return fail(checked.error().code, "{}: {}", place, checked.error().message);
    return {};
  }
};

// Walks over a pattern and keeps the brackets that are open, with the largest count inside each.
class PatternWalk {
 public:
  explicit PatternWalk(bool is_grammar) : is_grammar_(is_grammar) {}

  Result<void> run(string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      char c = text[i];
      if (c == '\\') {
        ++i;
      } else if (in_class_) {
        in_class_ = c != ']';
      } else if (in_string_) {
        in_string_ = c != '"';
      } else if (c == '[') {
        in_class_ = true;
      } else if (c == '"' && is_grammar_) {
        in_string_ = true;
      } else if (c == '(') {
        open_.push_back(1);
        if (static_cast<int>(open_.size()) > kMaxDepth)
          return fail(Code::kInvalid, "brackets are nested more than {} deep", kMaxDepth);
      } else if (c == ')' && open_.size() > 1) {
        last_ = open_.back();
        open_.pop_back();
        open_.back() = std::max(open_.back(), last_);
        continue;
      } else if (c == '{') {
        DI_TRY_VOID(count(text.substr(i + 1)));
      }
      last_ = 1;
    }
    return {};
  }

 private:
  // A count multiplies the largest one inside the group before it.
  Result<void> count(string_view rest) {
    std::size_t end = rest.find('}');
    if (end == string_view::npos) return {};
    string_view inside = rest.substr(0, end);
    int64_t largest = 0;
    for (std::size_t i = 0; i < inside.size();) {
      int64_t value = 0;
      auto [stop, error] = std::from_chars(inside.data() + i, inside.data() + inside.size(), value);
      if (error == std::errc::result_out_of_range) value = int64_t{1} << 40;
      largest = std::max(largest, value);
      std::size_t used = static_cast<std::size_t>(stop - inside.data()) - i;
      i += std::max<std::size_t>(used, 1);
    }
    int64_t total = std::max<int64_t>(largest, 1) * last_;
    if (total > kMaxRepeat)
      return fail(Code::kInvalid, "a part is repeated {} times in all, the limit is {}", total, kMaxRepeat);
    open_.back() = std::max(open_.back(), total);
    return {};
  }

  bool is_grammar_;
  bool in_class_ = false, in_string_ = false;
  std::vector<int64_t> open_ = {1};
  int64_t last_ = 1;  // repetitions inside the group that just ended
};

}  // namespace

Result<void> check_json_schema(string_view schema) {
  DI_TRY(json::value document, json::parse(schema, kMaxDepth));
  return Checker().schema(document, "#");
}

Result<void> check_pattern(string_view pattern, bool is_grammar) {
  return PatternWalk(is_grammar).run(pattern);
}

}  // namespace deepinfer::grammar
