// A chat request as the API takes it, checked: what it says, without deciding how it is written as a prompt.
//
//   body (JSON) -> parse_chat_request -> ChatRequest -> render_chat (text/chat.h) -> prompt
// Everything that can be wrong with messages, tools, tool_choice, response_format, thinking and reasoning_effort is
// found here; other members of the body (sampling and the like) are not looked at. Messages of errors name the member.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json_tree.h"

namespace deepinfer::text {

struct ChatPolicy {
  // The official service's body schema: no `developer` role, no integer reasoning_effort, no quick tasks.
  bool is_official = false;
};

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

struct ContentPart {
  bool is_image = false;
  std::string text;    // of a text part
  std::string url;     // of an image
  std::string detail;  // of an image; empty if not given
};

// One argument of a call as a prompt writes it.
struct ToolArgument {
  std::string name;
  bool is_string = true;
  std::string value;  // raw text of a string, JSON of anything else
};

struct ToolCall {
  std::string id, name;
  std::vector<ToolArgument> arguments;
};

// An assistant message as the model wrote it, behind the header of the prompt and without the end mark.
struct WrittenText {
  std::string text;          // control tokens spelled out
  std::vector<int32_t> ids;  // of that text
  bool opens_calls = false;  // the prompt's header had opened the block of calls
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> parts;
  std::string reasoning;               // assistant
  std::vector<ToolCall> calls;         // assistant
  bool is_prefix = false;              // assistant, last message: the answer begins with this text
  std::string tool_call_id;            // tool
  std::string task;                    // user: the control token of a quick task ("<｜query｜>"), or empty
  std::optional<WrittenText> written;  // assistant: takes the place of reasoning, parts and calls in the prompt
};

struct ToolDefinition {
  std::string name;
  std::string prompt_json;      // {"name", "description", "parameters"}, the line of the tool block
  std::string constraint_json;  // the tool as a grammar wants it, compact
  bool is_strict = false;       // arguments must follow the schema
};

enum class ToolChoice { kAuto, kRequired };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema, kRegex };

struct ChatRequest {
  std::vector<Message> messages;      // tool results stand in the order of their calls
  std::vector<ToolDefinition> tools;  // after tool_choice: none leaves nothing, a named one leaves that tool
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool is_single_call = false;  // a tool was named, or parallel calls are off
  bool is_thinking = true;
  int effort = 75;  // 1 .. 100
  ResponseFormat format = ResponseFormat::kText;
  std::string format_hint;        // JSON that the prompt shows; empty: no hint
  std::string format_constraint;  // schema or regular expression; empty for any JSON
};

// The arguments of a call from the JSON text of the API: one for each member of an object; anything else is one string
// called `arguments`.
std::vector<ToolArgument> parse_arguments(std::string_view text);

Result<ChatRequest> parse_chat_request(std::string body, const ChatPolicy& policy = {});
Result<ChatRequest> parse_chat_request(JsonValue body, const ChatPolicy& policy = {});

}  // namespace deepinfer::text
