// so_args -> a structural tag, the one form in which everything reaches the grammar library; and the pieces it is made
// of, as JSON text.
//
//   {"type": "structural_tag", "format": FORMAT}     FORMAT: json_schema | regex | grammar | or | sequence | tag | ...
//
// Pure functions over text. Errors name the field of so_args.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::grammar {

struct StructuralTag {
  std::string json;
  bool has_controls = false;  // control tokens may appear where the tag spells them; else none is ever allowed
};

// Everything that can be seen without compiling is checked: kind, size, nesting, unknown or unsupported keywords.
Result<StructuralTag> make_structural_tag(const StructuredOutput& output);
// Also the trigger: `vocab` ids.
Result<void> check_structured_output(const StructuredOutput& output, int vocab);

// ---- formats ------------------------------------------------------------------------------------------------------

std::string tag_of(std::string_view format);  // the whole tag
// `schema` empty: any JSON. In a chat, strings may not hold the markers that end an answer's text.
Result<std::string> json_format(std::string_view schema, bool is_chat);
Result<std::string> regex_format(std::string_view pattern);
// Free text, </think>, then `format`.
std::string after_reasoning(std::string_view format);

struct ToolRules {
  enum class Choice { kAuto, kNone, kRequired };
  Choice choice = Choice::kAuto;
  bool is_single_call = false;
  bool is_block_open = false;  // kRequired: the prompt already opened the block of calls
};
// Calls in the DSML form (docs/structured_output.md). `tools`: a JSON list as the API declares them; a tool with
// `strict: false` or without parameters takes any arguments.
Result<std::string> tool_call_format(std::string_view tools, const ToolRules& rules);

}  // namespace deepinfer::grammar
