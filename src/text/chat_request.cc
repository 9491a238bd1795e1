#include "text/chat_request.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "text/chat_messages.h"
#include "text/json_tree.h"
#include "text/tool_schema.h"

namespace deepinfer::text {
namespace {

constexpr int kLowEffort = 50, kHighEffort = 75, kMaxEffort = 100;

Result<void> read_thinking(JsonValue body, const ChatPolicy& policy, ChatRequest& request) {
  if (JsonValue thinking = body.find("thinking"); thinking.is_given()) {
    std::string_view type = thinking.find("type").text();
    if (type != "enabled" && type != "adaptive" && type != "disabled") {
      return fail(Code::kInvalid, "thinking.type '{}' must be enabled, adaptive or disabled", type);
    }
    request.is_thinking = type != "disabled";
  }
  JsonValue effort = body.find("reasoning_effort");
  if (!effort.is_given()) return {};
  std::string_view name = effort.text();
  if (effort.is_number() && !policy.is_official) {
    auto read = std::from_chars(name.data(), name.data() + name.size(), request.effort);
    bool is_whole = read.ec == std::errc() && read.ptr == name.data() + name.size();
    if (!is_whole || request.effort < 1 || request.effort > kMaxEffort) {
      return fail(Code::kInvalid, "reasoning_effort {} must be a whole number from 1 to {}", name, kMaxEffort);
    }
    return {};
  }
  if (!effort.is_string()) return fail(Code::kInvalid, "reasoning_effort must be a string");
  if (name == "none") {
    request.is_thinking = false;
  } else if (name == "minimal" || name == "low") {
    request.effort = kLowEffort;
  } else if (name == "medium" || name == "high" || name == "xhigh") {
    request.effort = kHighEffort;
  } else if (name == "ultra" || name == "max") {
    request.effort = kMaxEffort;
  } else {
    return fail(Code::kInvalid, "reasoning_effort '{}' must be none, minimal, low, medium, high, xhigh, ultra or max",
                name);
  }
  return {};
}

Result<void> read_tool_choice(JsonValue body, ChatRequest& request) {
  JsonValue parallel = body.find("parallel_tool_calls");
  if (parallel.is_given() && !parallel.is_bool())
    return fail(Code::kInvalid, "parallel_tool_calls must be true or false");
  request.is_single_call = parallel.is_bool() && !parallel.is_true();
  JsonValue choice = body.find("tool_choice");
  if (!choice.is_given() || choice.text() == "auto") return {};
  if (choice.text() == "none") {
    request.tools.clear();
    return {};
  }
  std::string_view name = choice.find("function").find("name").text();
  bool is_named = choice.is_object() && choice.find("type").text() == "function" && !name.empty();
  if (choice.text() != "required" && !is_named) {
    return fail(Code::kInvalid,
                "tool_choice must be none, auto, required or {{\"type\": \"function\", \"function\": {{\"name\"}}}}");
  }
  if (request.is_thinking) return fail(Code::kInvalid, "tool_choice can only require a tool when thinking is disabled");
  if (request.tools.empty()) return fail(Code::kInvalid, "tool_choice requires a tool but tools is empty");
  request.tool_choice = ToolChoice::kRequired;
  if (!is_named) return {};
  auto tool = std::find_if(request.tools.begin(), request.tools.end(), [&](const auto& t) { return t.name == name; });
  if (tool == request.tools.end())
    return fail(Code::kInvalid, "tool_choice names '{}', which tools does not declare", name);
  std::vector<ToolDefinition> only;
  only.push_back(std::move(*tool));
  request.tools = std::move(only);
  request.is_single_call = true;
  return {};
}

bool contains_json_word(const std::vector<Message>& messages) {
  constexpr std::string_view kWord = "json";
  auto is_same = [](char a, char b) { return (a | 0x20) == b; };
  for (const Message& message : messages) {
    for (const ContentPart& part : message.parts) {
      const std::string& t = part.text;
      if (std::search(t.begin(), t.end(), kWord.begin(), kWord.end(), is_same) != t.end()) return true;
    }
  }
  return false;
}

Result<void> read_response_format(JsonValue body, ChatRequest& request) {
  JsonValue format = body.find("response_format");
  if (!format.is_given()) return {};
  std::string_view type = format.find("type").text();
  if (type == "text") return {};
  if (type == "json_object") {
    if (!contains_json_word(request.messages)) {
      return fail(Code::kInvalid, "response_format json_object needs the word 'json' somewhere in the messages");
    }
    request.format = ResponseFormat::kJsonObject;
    request.format_hint = "{\"type\": \"json_object\"}";
  } else if (type == "json_schema") {
    JsonValue schema = format.find("json_schema").find("schema");
    if (!schema.is_object()) return fail(Code::kInvalid, "response_format.json_schema.schema must be an object");
    request.format = ResponseFormat::kJsonSchema;
    append_json(schema, JsonStyle::kSpaced, request.format_hint);
    if (format.find("json_schema").find("strict").is_true()) {
      append_strict_schema(schema, JsonStyle::kCompact, request.format_constraint);
    } else {
      append_json(schema, JsonStyle::kCompact, request.format_constraint);
    }
  } else if (type == "regex") {
    if (!format.find("regex").is_string()) return fail(Code::kInvalid, "response_format.regex must be a string");
    request.format = ResponseFormat::kRegex;
    request.format_constraint = format.find("regex").text();
  } else {
    return fail(Code::kInvalid, "response_format.type '{}' must be text, json_object, json_schema or regex", type);
  }
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string body, const ChatPolicy& policy) {
  DI_TRY(JsonTree tree, JsonTree::parse(std::move(body)));
  return parse_chat_request(tree.root(), policy);
}

Result<ChatRequest> parse_chat_request(JsonValue root, const ChatPolicy& policy) {
  if (!root.is_object()) return fail(Code::kInvalid, "the request must be a JSON object");
  ChatRequest request;
  DI_TRY_VOID(read_thinking(root, policy, request));
  DI_TRY(request.tools, parse_tools(root.find("tools")));
  DI_TRY_VOID(read_tool_choice(root, request));
  DI_TRY(request.messages, parse_messages(root.find("messages"), policy));
  if (request.messages.back().is_prefix && !request.tools.empty()) {
    return fail(Code::kInvalid, "messages[{}].prefix cannot be combined with tools", request.messages.size() - 1);
  }
  DI_TRY_VOID(read_response_format(root, request));
  return request;
}

}  // namespace deepinfer::text
