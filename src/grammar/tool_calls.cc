// The block of tool calls as a structural tag:
//
//   <D calls>\n  ( <D invoke name="NAME">\n  parameters by schema  </D invoke>\n )+  </D calls>      D = ｜DSML｜
//
// Parameters are the library's style `deepseek_v4_1_xml`: strings raw, everything else JSON, properties in the order of
// the schema.

#include "base/json.h"
#include "grammar/limits.h"
#include "grammar/schema_check.h"
#include "grammar/structural_tag.h"

namespace deepinfer::grammar {
namespace {

constexpr std::string_view kCallsBegin = "<｜DSML｜ calls>\n", kCallsEnd = "</｜DSML｜ calls>";
constexpr std::string_view kTrigger = "<｜DSML｜ calls>";

std::string quoted(std::string_view text) {
  return json::dump(json::value(text));
}

std::string constant(std::string_view text) {
  return R"({"type":"const_string","value":)" + quoted(text) + '}';
}

// One tool as the tag of its call.
Result<std::string> invoke_tag(const json::value& tool, std::size_t index) {
  const json::value* function = tool.is_object() ? tool.as_object().if_contains("function") : nullptr;
  const json::value* name = function && function->is_object() ? function->as_object().if_contains("name") : nullptr;
  if (name == nullptr || !name->is_string()) return fail(Code::kInvalid, "tools[{}].function.name is missing", index);
  const json::value* parameters = function->as_object().if_contains("parameters");
  const json::value* strict = function->as_object().if_contains("strict");
  bool is_free = parameters == nullptr || parameters->is_null() || (strict != nullptr && *strict == json::value(false));
  std::string schema = is_free ? "true" : json::dump(*parameters);
  if (auto checked = check_json_schema(schema); !checked)
    return fail(checked.error().code, "tools[{}].function.parameters: {}", index, checked.error().message);
  std::string begin = "<｜DSML｜ invoke name=\"" + std::string(name->as_string()) + "\">\n";
  return fmt::format(
      R"({{"type":"tag","begin":{},"content":{{"type":"json_schema","style":"deepseek_v4_1_xml","json_schema":{},)"
      R"("max_whitespace_cnt":{}}},"end":"</｜DSML｜ invoke>\n"}})",
      quoted(begin), schema, kMaxJsonSpace);
}

std::string free_text(bool allows_calls) {
  return fmt::format(R"({{"type":"any_text","excludes":["<think>","</think>"{}]}})",
                     allows_calls ? "" : "," + quoted(kTrigger));
}

}  // namespace

Result<std::string> tool_call_format(std::string_view tools, const ToolRules& rules) {
  DI_TRY(json::value list, json::parse(tools, kMaxDepth));
  if (!list.is_array()) return fail(Code::kInvalid, "tools must be a list");
  std::string tags;
  for (std::size_t i = 0; i < list.as_array().size(); ++i) {
    DI_TRY(std::string tag, invoke_tag(list.as_array()[i], i));
    if (i > 0) tags += ',';
    tags += tag;
  }
  using Choice = ToolRules::Choice;
  if (rules.choice == Choice::kNone || (tags.empty() && rules.choice == Choice::kAuto)) return free_text(false);
  if (tags.empty()) return fail(Code::kInvalid, "tools are empty, but a call is required");
  std::string calls = fmt::format(
      R"({{"type":"tags_with_separator","tags":[{}],"separator":"","at_least_one":true,"stop_after_first":{}}})", tags,
      rules.is_single_call);
  if (rules.choice == Choice::kAuto) {
    return fmt::format(
        R"({{"type":"triggered_tags","triggers":[{}],"tags":[{{"type":"tag","begin":{},"content":{},"end":{}}}],)"
        R"("excludes":["<think>","</think>"],"stop_after_first":true}})",
        quoted(kTrigger), quoted(kCallsBegin), calls, quoted(kCallsEnd));
  }
  std::string opening = rules.is_block_open ? "" : constant("\n\n" + std::string(kCallsBegin)) + ',';
  return fmt::format(R"({{"type":"sequence","elements":[{}{},{}]}})", opening, calls, constant(kCallsEnd));
}

}  // namespace deepinfer::grammar
