#include "text/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace deepinfer::text {
namespace {

auto wrong(int index, std::string_view what) {
  return fail(Code::kInvalid, "messages[{}]{}", index, what);
}

Result<Role> parse_role(JsonValue message, int index, const ChatPolicy& policy) {
  std::string_view role = message.find("role").text();
  if (role == "system") return Role::kSystem;
  if (role == "developer" && !policy.is_official) return Role::kSystem;
  if (role == "user") return Role::kUser;
  if (role == "assistant") return Role::kAssistant;
  if (role == "tool") return Role::kTool;
  if (role == "latest_reminder") return Role::kLatestReminder;
  return wrong(index, fmt::format(".role '{}' must be system, user, assistant, tool or latest_reminder", role));
}

Result<ContentPart> parse_part(JsonValue part, int index) {
  std::string_view type = part.find("type").text();
  if (type == "text") {
    if (!part.find("text").is_string()) return wrong(index, ".content: a text part needs the string 'text'");
    return ContentPart{.text = std::string(part.find("text").text())};
  }
  if (type != "image_url" && type != "input_image") {
    return wrong(index, fmt::format(".content: part type '{}' must be text, image_url or input_image", type));
  }
  // The Responses spelling has the URL itself where the chat one has an object.
  JsonValue image = part.find("image_url");
  JsonValue url = image.is_object() ? image.find("url") : image;
  JsonValue detail = image.is_object() ? image.find("detail") : part.find("detail");
  if (!url.is_string()) return wrong(index, ".content: an image needs the string 'url'");
  return ContentPart{.is_image = true, .url = std::string(url.text()), .detail = std::string(detail.text())};
}

Result<std::vector<ContentPart>> parse_content(JsonValue content, int index) {
  std::vector<ContentPart> parts;
  if (content.is_string()) {
    parts.push_back({.text = std::string(content.text())});
    return parts;
  }
  if (!content.is_array()) return wrong(index, ".content must be a string or a list of parts");
  for (JsonValue v : content) {
    DI_TRY(ContentPart part, parse_part(v, index));
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<std::vector<ToolCall>> parse_calls(JsonValue list, int index) {
  std::vector<ToolCall> calls;
  if (!list.is_given()) return calls;
  if (!list.is_array()) return wrong(index, ".tool_calls must be a list");
  for (JsonValue v : list) {
    JsonValue function = v.find("function");
    JsonValue id = v.find("id"), name = function.find("name"), arguments = function.find("arguments");
    if (!id.is_string() || !name.is_string() || !arguments.is_string()) {
      return wrong(index, ".tool_calls: each call needs the strings 'id', 'function.name' and 'function.arguments'");
    }
    calls.push_back({.id = std::string(id.text()),
                     .name = std::string(name.text()),
                     .arguments = parse_arguments(arguments.text())});
  }
  return calls;
}

Result<void> parse_assistant(JsonValue v, int index, Message& message) {
  DI_TRY(message.calls, parse_calls(v.find("tool_calls"), index));
  JsonValue reasoning = v.find("reasoning_content").is_given() ? v.find("reasoning_content") : v.find("reasoning");
  if (reasoning.is_given() && !reasoning.is_string()) return wrong(index, ".reasoning_content must be a string");
  message.reasoning = reasoning.text();
  JsonValue prefix = v.find("prefix");
  if (prefix.is_given() && !prefix.is_bool()) return wrong(index, ".prefix must be true or false");
  message.is_prefix = prefix.is_true();
  if (std::any_of(message.parts.begin(), message.parts.end(), [](const auto& p) { return p.is_image; })) {
    return wrong(index, ".content: an assistant message cannot hold images");
  }
  return {};
}

Result<void> parse_task(JsonValue v, int index, Message& message) {
  JsonValue task = v.find("task");
  if (!task.is_given()) return {};
  for (std::string_view name : {"action", "query", "authority", "domain", "title", "read_url"}) {
    if (task.text() == name) message.task = fmt::format("<｜{}｜>", name);
  }
  if (message.task.empty()) return wrong(index, ".task must be action, query, authority, domain, title or read_url");
  return {};
}

Result<Message> parse_message(JsonValue v, int index, const ChatPolicy& policy) {
  if (!v.is_object()) return wrong(index, " must be an object");
  Message message;
  DI_TRY(message.role, parse_role(v, index, policy));
  bool is_assistant = message.role == Role::kAssistant;
  bool may_be_empty = is_assistant && v.find("tool_calls").size() > 0;
  if (v.find("content").is_given() || !may_be_empty) {
    DI_TRY(message.parts, parse_content(v.find("content"), index));
  }
  if (is_assistant) DI_TRY_VOID(parse_assistant(v, index, message));
  if (message.role == Role::kUser && !policy.is_official) DI_TRY_VOID(parse_task(v, index, message));
  if (message.role == Role::kTool) {
    if (!v.find("tool_call_id").is_string()) return wrong(index, ".tool_call_id must be a string");
    message.tool_call_id = v.find("tool_call_id").text();
  }
  return message;
}

// The messages behind an assistant message with calls are its results, one a call in any order; puts them in call
// order.
Result<void> order_results(std::vector<Message>& messages, std::size_t caller) {
  const auto& calls = messages[caller].calls;
  int index = static_cast<int>(caller);
  std::unordered_map<std::string_view, std::size_t> position;
  for (const ToolCall& call : calls) {
    if (!position.emplace(call.id, position.size()).second) {
      return wrong(index, fmt::format(".tool_calls: the id '{}' occurs twice", call.id));
    }
  }
  std::vector<Message> ordered(calls.size());
  std::vector<bool> is_answered(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    std::size_t at = caller + 1 + i;
    if (at >= messages.size() || messages[at].role != Role::kTool) {
      return wrong(
          index, fmt::format(".tool_calls: {} calls must be followed by {} tool messages", calls.size(), calls.size()));
    }
    auto found = position.find(messages[at].tool_call_id);
    if (found == position.end() || is_answered[found->second]) {
      return wrong(static_cast<int>(at),
                   fmt::format(".tool_call_id '{}' answers no open call", messages[at].tool_call_id));
    }
    is_answered[found->second] = true;
    ordered[found->second] = std::move(messages[at]);
  }
  std::move(ordered.begin(), ordered.end(), messages.begin() + static_cast<std::ptrdiff_t>(caller) + 1);
  return {};
}

}  // namespace

std::vector<ToolArgument> parse_arguments(std::string_view text) {
  std::vector<ToolArgument> arguments;
  auto tree = JsonTree::parse(std::string(text));
  if (!tree || !tree->root().is_object()) {
    arguments.push_back({.name = "arguments", .value = std::string(text)});
    return arguments;
  }
  for (JsonValue member : unique_members(tree->root())) {
    ToolArgument a{.name = std::string(member.key()), .is_string = member.is_string()};
    if (a.is_string) {
      a.value = member.text();
    } else {
      append_json(member, JsonStyle::kSpaced, a.value);
    }
    arguments.push_back(std::move(a));
  }
  return arguments;
}

Result<std::vector<Message>> parse_messages(JsonValue list, const ChatPolicy& policy) {
  if (!list.is_array() || list.size() == 0)
    return fail(Code::kInvalid, "messages must be a list of at least one message");
  std::vector<Message> messages;
  messages.reserve(static_cast<std::size_t>(list.size()));
  for (JsonValue v : list) {
    DI_TRY(Message message, parse_message(v, static_cast<int>(messages.size()), policy));
    messages.push_back(std::move(message));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    int index = static_cast<int>(i);
    if (messages[i].role == Role::kTool) return wrong(index, " is a tool result without a call before it");
    if (messages[i].is_prefix && i + 1 != messages.size())
      return wrong(index, ".prefix is only allowed on the last message");
    if (messages[i].calls.empty()) continue;
    DI_TRY_VOID(order_results(messages, i));
    i += messages[i].calls.size();
  }
  return messages;
}

}  // namespace deepinfer::text
