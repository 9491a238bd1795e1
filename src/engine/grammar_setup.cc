#include "engine/grammar_setup.h"

#include <algorithm>

#include "grammar/structural_tag.h"

namespace deepinfer::engine {
namespace {

// The markers of reasoning and calls, and the grounding tokens of the visible text (docs/chat.md).
constexpr std::string_view kSpelled[] = {"<think>",      "</think>",      "｜DSML｜",      "<｜ref｜>",
                                         "<｜/ref｜>",   "<｜box｜>",     "<｜/box｜>",    "<｜point｜>",
                                         "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};

using Kind = text::OutputConstraint::Kind;

Result<std::string> format_of(const text::OutputConstraint& constraint) {
  grammar::ToolRules rules{.is_single_call = constraint.is_single_call};
  switch (constraint.kind) {
    case Kind::kJson:
      return grammar::json_format(
          constraint.schema.empty() ? R"({"type":"object","additionalProperties":true})" : constraint.schema, true);
    case Kind::kRegex:
      return grammar::regex_format(constraint.schema);
    case Kind::kToolCallRequired:
      rules.choice = grammar::ToolRules::Choice::kRequired;
      rules.is_block_open = true;
      [[fallthrough]];
    default:
      return grammar::tool_call_format(constraint.schema, rules);
  }
}

// Whether the answer's form was asked for. Tools alone leave the model free to call them as it was trained to.
bool is_constrained(const text::ChatRequest& chat) {
  if (chat.tools.empty()) return chat.format != text::ResponseFormat::kText;
  bool is_strict = std::any_of(chat.tools.begin(), chat.tools.end(), [](const auto& tool) { return tool.is_strict; });
  return is_strict || chat.is_single_call || chat.tool_choice == text::ToolChoice::kRequired;
}

// The part of the answer that the prompt already holds.
std::string text_so_far(const text::ChatRequest& request, text::OutputFormat::Start start) {
  const text::Message& last = request.messages.back();
  if (start == text::OutputFormat::Start::kReasoningContinuation) return last.reasoning;
  std::string text;
  for (const text::ContentPart& part : last.parts) text += part.text;
  return text;
}

}  // namespace

grammar::Vocabulary grammar_vocabulary(const text::Tokenizer& tokenizer, int vocab, int32_t eos_id) {
  grammar::Vocabulary v{.bytes = std::vector<std::string>(static_cast<std::size_t>(vocab)), .eos_id = eos_id};
  for (int32_t id = 0; id < std::min(vocab, tokenizer.num_ids()); ++id) {
    std::string bytes(tokenizer.token_bytes(id));
    if (!tokenizer.is_added(id)) {
      v.bytes[static_cast<std::size_t>(id)] = std::move(bytes);
    } else if (std::find(std::begin(kSpelled), std::end(kSpelled), bytes) != std::end(kSpelled)) {
      v.controls.emplace_back(id, std::move(bytes));
    }
  }
  return v;
}

Result<std::optional<StructuredOutput>> chat_constraint(const text::ChatRequest& request,
                                                        const text::ChatPrompt& prompt) {
  using Start = text::OutputFormat::Start;
  if (prompt.constraint.kind == Kind::kNone || !is_constrained(request)) return std::nullopt;
  auto format = format_of(prompt.constraint);
  if (!format) {
    bool is_tools = prompt.constraint.kind == Kind::kToolCall || prompt.constraint.kind == Kind::kToolCallRequired;
    return fail(format.error().code, "{}{}", is_tools ? "" : "response_format: ", format.error().message);
  }
  Start start = prompt.output.start;
  bool is_reasoning = start == Start::kReasoning || start == Start::kReasoningContinuation;
  StructuredOutput output{.schema_type = "structural_tag",
                          .schema = grammar::tag_of(is_reasoning ? grammar::after_reasoning(*format) : *format)};
  if (start == Start::kReasoningContinuation || start == Start::kTextContinuation)
    output.prefix = text_so_far(request, start);
  return output;
}

}  // namespace deepinfer::engine
