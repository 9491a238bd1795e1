#include "text/chat.h"

#include <algorithm>
#include <array>
#include <span>

namespace deepinfer::text {
namespace {

constexpr std::string_view kSystem = "<｜System｜>", kUser = "<｜User｜>", kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>", kAction = "<｜action｜>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kFimBegin = "<｜fim▁begin｜>", kFimHole = "<｜fim▁hole｜>", kFimEnd = "<｜fim▁end｜>";

// Control tokens of our own constants, and of an assistant's visible text.
constexpr std::array kMarkup = {kThink, kEndThink, kDsml};
constexpr std::array<std::string_view, 8> kGrounding = {"<｜ref｜>",     "<｜/ref｜>",    "<｜box｜>",
                                                        "<｜/box｜>",    "<｜point｜>",   "<｜/point｜>",
                                                        "<｜polygon｜>", "<｜/polygon｜>"};

constexpr std::string_view kEffortBegin = "Reasoning Effort: ";
constexpr std::string_view kEffortEnd = " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
constexpr std::string_view kFormatHint =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kOpenCalls = "\n\n<｜DSML｜ calls>\n";
constexpr std::string_view kToolsBegin = R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsEnd =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

bool has_text(const Message& message) {
  auto says_something = [](const ContentPart& p) { return p.is_image || !p.text.empty(); };
  return message.parts.size() > 1 || std::any_of(message.parts.begin(), message.parts.end(), says_something);
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, const ChatOptions& options) : request_(request), options_(options) {
    for (std::size_t i = 0; i < request.messages.size(); ++i) {
      Role role = request.messages[i].role;
      if (role == Role::kUser || role == Role::kSystem) last_question_ = static_cast<int>(i);
    }
  }

  ChatPrompt run() {
    const auto& messages = request_.messages;
    bool is_first_system = messages[0].role == Role::kSystem;
    special(kBos);
    int64_t begin = size();
    head(is_first_system ? &messages[0] : nullptr);
    if (is_first_system) prompt_.messages.push_back({begin, size()});
    for (std::size_t i = is_first_system ? 1 : 0; i < messages.size(); ++i) {
      begin = size();
      message(i);
      prompt_.messages.push_back({begin, size()});
    }
    if (!messages.back().is_prefix) header(messages.back().task);
    finish();
    return std::move(prompt_);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(prompt_.text.size()); }
  void plain(std::string_view text) { prompt_.text += text; }
  void special(std::string_view token) {
    int64_t begin = size();
    prompt_.text += token;
    prompt_.special.push_back({begin, size()});
  }

  // Text in which the given tokens are control tokens. All of them begin with '<' or with the first byte of '｜'.
  void marked(std::string_view text, std::span<const std::string_view> tokens) {
    std::size_t copied = 0;
    for (std::size_t i = text.find_first_of("<\xEF"); i != text.npos; i = text.find_first_of("<\xEF", i)) {
      std::string_view rest = text.substr(i);
      auto token = std::find_if(tokens.begin(), tokens.end(), [&](std::string_view t) { return rest.starts_with(t); });
      if (token == tokens.end()) {
        ++i;
        continue;
      }
      plain(text.substr(copied, i - copied));
      special(*token);
      i += token->size();
      copied = i;
    }
    plain(text.substr(copied));
  }
  void markup(std::string_view text) { marked(text, kMarkup); }

  void parts(const Message& message) {
    std::string_view separator;
    for (const ContentPart& part : message.parts) {
      plain(separator);
      separator = "\n\n";
      if (part.is_image) {
        special(options_.image_token);
        prompt_.images.push_back({.url = part.url, .detail = part.detail});
      } else if (message.role == Role::kAssistant) {
        marked(part.text, kGrounding);
      } else {
        plain(part.text);
      }
    }
  }

  // The system block at the top: effort, the first system message, tools, format hint.
  void head(const Message* system) {
    bool has_system = system != nullptr && has_text(*system);
    bool has_tools = !request_.tools.empty(), has_hint = !request_.format_hint.empty();
    if (request_.is_thinking || has_system || has_tools || has_hint) special(kSystem);
    if (request_.is_thinking) {
      plain(kEffortBegin);
      plain(std::to_string(request_.effort));
      plain(kEffortEnd);
    }
    if (has_system) parts(*system);
    if (has_tools) {
      plain("\n\n");
      markup(kToolsBegin);
      for (const ToolDefinition& tool : request_.tools) {
        plain(tool.prompt_json);
        plain("\n");
      }
      markup(kToolsEnd);
    }
    if (has_hint) {
      plain("\n\n");
      plain(kFormatHint);
      plain(request_.format_hint);
    }
  }

  void message(std::size_t index) {
    const Message& m = request_.messages[index];
    switch (m.role) {
      case Role::kSystem:
        if (has_text(m)) special(kSystem);
        parts(m);
        break;
      case Role::kLatestReminder:
        special(kReminder);
        parts(m);
        break;
      case Role::kUser:
      case Role::kTool:
        user_part(index);
        break;
      case Role::kAssistant:
        assistant(index);
        break;
    }
  }

  // Consecutive user and tool messages share one turn.
  void user_part(std::size_t index) {
    const Message& m = request_.messages[index];
    bool continues = false;
    if (index > 0) {
      Role before = request_.messages[index - 1].role;
      continues = before == Role::kUser || before == Role::kTool;
    }
    if (continues) {
      plain("\n\n");
    } else {
      special(kUser);
    }
    if (m.role == Role::kTool) plain("<tool_result>");
    parts(m);
    if (m.role == Role::kTool) plain("</tool_result>");
  }

  void assistant(std::size_t index) {
    const Message& m = request_.messages[index];
    if (m.written) return written(*m.written);
    if (index > 0 && !request_.messages[index - 1].task.empty()) {
      header(request_.messages[index - 1].task);
    } else {
      special(kAssistant);
      opening(index);
    }
    parts(m);
    calls(m);
    if (!m.is_prefix) special(kEos);
  }

  void written(const WrittenText& w) {
    special(kAssistant);
    special(request_.is_thinking ? kThink : kEndThink);
    if (w.opens_calls) markup(kOpenCalls);
    int64_t begin = size();
    plain(w.text);
    prompt_.written.push_back({{begin, size()}, w.ids});
    special(kEos);
  }

  void opening(std::size_t index) {
    const Message& m = request_.messages[index];
    bool shows_reasoning = request_.is_thinking && (m.is_prefix || keeps_reasoning(index));
    if (!shows_reasoning) return special(kEndThink);
    special(kThink);
    plain(m.reasoning);
    if (!m.is_prefix || has_text(m)) special(kEndThink);
  }

  bool keeps_reasoning(std::size_t index) const {
    if (!request_.tools.empty()) return true;
    if (!options_.tool_results_keep_reasoning) return false;
    return static_cast<int>(index) > last_question_;
  }

  void calls(const Message& m) {
    if (m.calls.empty()) return;
    markup(kOpenCalls);
    std::string_view separator;
    for (const ToolCall& call : m.calls) {
      plain(separator);
      separator = "\n";
      markup("<｜DSML｜ invoke name=\"");
      plain(call.name);
      plain("\">\n");
      arguments(call);
      markup("\n</｜DSML｜ invoke>");
    }
    markup("\n</｜DSML｜ calls>");
  }

  void arguments(const ToolCall& call) {
    std::string_view separator;
    for (const ToolArgument& argument : call.arguments) {
      plain(separator);
      separator = "\n";
      markup("<｜DSML｜ parameter name=\"");
      plain(argument.name);
      plain(argument.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
      plain(argument.value);
      markup("</｜DSML｜ parameter>");
    }
  }

  // What makes the model answer. A quick task's token replaces the header, except that `action` follows it.
  void header(std::string_view task) {
    if (task.empty() || task == kAction) {
      special(kAssistant);
      special(request_.is_thinking ? kThink : kEndThink);
    }
    if (!task.empty()) special(task);
  }

  void finish() {
    bool is_required = request_.tool_choice == ToolChoice::kRequired;
    if (is_required) markup(kOpenCalls);
    prompt_.output.start = start();
    prompt_.output.parses_tool_calls = !request_.tools.empty();
    prompt_.output.is_json = request_.format == ResponseFormat::kJsonObject;

    using Kind = OutputConstraint::Kind;
    OutputConstraint& constraint = prompt_.constraint;
    if (!request_.tools.empty()) {
      constraint.kind = is_required ? Kind::kToolCallRequired : Kind::kToolCall;
      constraint.is_single_call = request_.is_single_call;
      for (const ToolDefinition& tool : request_.tools) {
        constraint.schema += constraint.schema.empty() ? '[' : ',';
        constraint.schema += tool.constraint_json;
      }
      constraint.schema += ']';
    } else if (request_.format != ResponseFormat::kText) {
      constraint.kind = request_.format == ResponseFormat::kRegex ? Kind::kRegex : Kind::kJson;
      constraint.schema = request_.format_constraint;
    }
  }

  OutputFormat::Start start() const {
    using Start = OutputFormat::Start;
    const Message& last = request_.messages.back();
    if (request_.tool_choice == ToolChoice::kRequired) return Start::kCalls;
    if (!request_.is_thinking || !last.task.empty()) return Start::kText;
    if (!last.is_prefix) return Start::kReasoning;
    if (has_text(last)) return Start::kTextContinuation;
    return last.reasoning.empty() ? Start::kReasoning : Start::kReasoningContinuation;
  }

  const ChatRequest& request_;
  const ChatOptions& options_;
  int last_question_ = -1;  // index of the last user or system message
  ChatPrompt prompt_;
};

}  // namespace

ChatPrompt render_chat(const ChatRequest& request, const ChatOptions& options) {
  return Renderer(request, options).run();
}

ChatPrompt render_completion(std::string_view prompt, std::string_view suffix) {
  ChatPrompt result;
  auto special = [&](std::string_view token) {
    auto begin = static_cast<int64_t>(result.text.size());
    result.text += token;
    result.special.push_back({begin, begin + static_cast<int64_t>(token.size())});
  };
  special(kBos);
  if (!suffix.empty()) special(kFimBegin);
  result.text += prompt;
  if (suffix.empty()) return result;
  special(kFimHole);
  result.text += suffix;
  special(kFimEnd);
  return result;
}

Result<std::vector<int32_t>> encode_completion(const Tokenizer& tokenizer, std::string_view prompt,
                                               std::string_view suffix, bool is_trusted) {
  ChatPrompt rendered = render_completion(prompt, suffix);
  if (!is_trusted) return encode_prompt(tokenizer, rendered);
  std::vector<int32_t> ids;
  tokenizer.encode(rendered.text, ids);
  return ids;
}

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  std::vector<int32_t> ids;
  int64_t begin = 0;
  auto next = prompt.special.begin();
  auto encode_to = [&](int64_t end) -> Result<void> {
    std::vector<ByteRange> marked;
    for (; next != prompt.special.end() && next->begin < end; ++next)
      marked.push_back({next->begin - begin, next->end - begin});
    std::string_view text = std::string_view(prompt.text).substr(static_cast<std::size_t>(begin));
    return tokenizer.encode_marked(text.substr(0, static_cast<std::size_t>(end - begin)), marked, ids);
  };
  for (const WrittenRange& w : prompt.written) {
    DI_TRY_VOID(encode_to(w.range.begin));
    ids.insert(ids.end(), w.ids.begin(), w.ids.end());
    begin = w.range.end;
  }
  DI_TRY_VOID(encode_to(static_cast<int64_t>(prompt.text.size())));
  return ids;
}

}  // namespace deepinfer::text
