#include "grammar/structural_tag.h"

#include "base/json.h"
#include "grammar/limits.h"
#include "grammar/schema_check.h"

namespace deepinfer::grammar {
namespace {

constexpr int kTagDepth = 2 * kMaxDepth;  // formats around schemas

std::string quoted(std::string_view text) {
  return json::dump(json::value(text));
}

tl::unexpected<Error> at_field(const Error& error) {
  return fail(error.code, "so_args.schema: {}", error.message);
}

Result<std::string> choice_format(std::string_view schema) {
  DI_TRY(json::value list, json::parse(schema, kMaxDepth));
  if (!list.is_array() || list.as_array().empty())
    return fail(Code::kInvalid, "a choice is a JSON list of at least one string");
  std::string format = R"({"type":"or","elements":[)";
  for (const json::value& item : list.as_array()) {
    if (!item.is_string() || item.as_string().empty())
      return fail(Code::kInvalid, "a choice lists {}, not a string with at least one character", json::dump(item));
    if (format.back() != '[') format += ',';
    format += R"({"type":"const_string","value":)" + json::dump(item) + '}';
  }
  return format + "]}";
}

Result<std::string> grammar_format(std::string_view grammar) {
  DI_TRY_VOID(check_pattern(grammar, true));
  return R"({"type":"grammar","syntax":"ebnf","grammar":)" + quoted(grammar) + '}';
}

// Every schema and pattern in a tag that the caller wrote.
Result<void> check_formats(const json::value& value) {
  if (value.is_array()) {
    for (const json::value& v : value.as_array()) DI_TRY_VOID(check_formats(v));
  }
  if (!value.is_object()) return {};
  for (const auto& [key, member] : value.as_object()) {
    if (key == "json_schema") {
      DI_TRY_VOID(check_json_schema(json::dump(member)));
    } else if ((key == "pattern" || key == "grammar") && member.is_string()) {
      DI_TRY_VOID(check_pattern(member.as_string(), key == "grammar"));
    } else {
      DI_TRY_VOID(check_formats(member));
    }
  }
  return {};
}

Result<StructuralTag> make_tag(const StructuredOutput& output) {
  std::string_view kind = output.schema_type;
  if (kind == "structural_tag") {
    DI_TRY(json::value tag, json::parse(output.schema, kTagDepth));
    DI_TRY_VOID(check_formats(tag));
    return StructuralTag{.json = json::dump(tag), .has_controls = true};
  }
  std::string format;
  if (kind == "json") {
    DI_TRY(format, json_format(output.schema, false));
  } else if (kind == "json_object") {
    if (!output.schema.empty()) return fail(Code::kInvalid, "json_object takes no schema; use json");
    DI_TRY(format, json_format(R"({"type":"object","additionalProperties":true})", false));
  } else if (kind == "regex") {
    DI_TRY(format, regex_format(output.schema));
  } else if (kind == "ebnf") {
    DI_TRY(format, grammar_format(output.schema));
  } else {
    DI_TRY(format, choice_format(output.schema));
  }
  return StructuralTag{.json = tag_of(format)};
}

}  // namespace

Result<StructuralTag> make_structural_tag(const StructuredOutput& output) {
  std::string_view kind = output.schema_type;
  bool is_known = kind == "json" || kind == "json_object" || kind == "regex" || kind == "ebnf" || kind == "choice" ||
                  kind == "structural_tag";
  if (!is_known)
    return fail(Code::kInvalid,
                "so_args.schema_type is '{}'; allowed: json, json_object, regex, ebnf, choice, structural_tag", kind);
  if (output.schema.empty() && kind != "json" && kind != "json_object")
    return fail(Code::kInvalid, "so_args.schema is empty; a {} was expected", kind);
  std::size_t bytes = output.schema.size() + output.prefix.size();
  if (bytes > kMaxSchemaBytes)
    return fail(Code::kInvalid, "so_args.schema has {} bytes, the limit is {}", bytes, kMaxSchemaBytes);
  auto tag = make_tag(output);
  if (!tag) return at_field(tag.error());
  return tag;
}

Result<void> check_structured_output(const StructuredOutput& output, int vocab) {
  if (output.trigger_token_ids.size() > static_cast<std::size_t>(kMaxTrigger))
    return fail(Code::kInvalid, "so_args.trigger_token_ids has {} entries, the limit is {}",
                output.trigger_token_ids.size(), kMaxTrigger);
  auto check_id = [&](const char* field, int32_t id) -> Result<void> {
    if (id >= 0 && id < vocab) return {};
    return fail(Code::kInvalid, "so_args.{} {} is outside the vocabulary of {} ids", field, id, vocab);
  };
  for (int32_t id : output.trigger_token_ids) DI_TRY_VOID(check_id("trigger_token_ids id", id));
  if (output.bound_token_id) {
    DI_TRY_VOID(check_id("bound_token_id", *output.bound_token_id));
    if (output.trigger_token_ids.empty())
      return fail(Code::kInvalid, "so_args.bound_token_id {} needs trigger_token_ids", *output.bound_token_id);
  }
  if (!output.prefix.empty() && !output.trigger_token_ids.empty())
    return fail(Code::kInvalid, "so_args.prefix cannot be combined with trigger_token_ids");
  auto tag = make_structural_tag(output);
  if (!tag) return tl::unexpected(tag.error());
  return {};
}

std::string tag_of(std::string_view format) {
  return fmt::format(R"({{"type":"structural_tag","format":{}}})", format);
}

Result<std::string> json_format(std::string_view schema, bool is_chat) {
  if (schema.empty()) schema = "true";
  DI_TRY_VOID(check_json_schema(schema));
  return fmt::format(R"({{"type":"json_schema","json_schema":{},"max_whitespace_cnt":{}{}}})", schema, kMaxJsonSpace,
                     is_chat ? R"(,"excludes":["<｜DSML｜","<think>","</think>"])" : "");
}

Result<std::string> regex_format(std::string_view pattern) {
  DI_TRY_VOID(check_pattern(pattern, false));
  return R"({"type":"regex","pattern":)" + quoted(pattern) + '}';
}

std::string after_reasoning(std::string_view format) {
  return fmt::format(
      R"({{"type":"sequence","elements":[{{"type":"tag","begin":"","content":{{"type":"any_text","excludes":["<think>",)"
      R"("</think>"]}},"end":"</think>"}},{}]}})",
      format);
}

}  // namespace deepinfer::grammar
