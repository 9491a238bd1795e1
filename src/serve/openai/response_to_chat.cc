#include "serve/openai/response_to_chat.h"

#include "serve/json_writer.h"

namespace deepinfer::serve::openai {
namespace {

std::string compact(JsonValue v) {
  std::string out;
  text::append_json(v, text::JsonStyle::kCompact, out);
  return out;
}

// Turns items into messages; what the assistant said in a row is gathered first.
class Messages {
 public:
  explicit Messages(const std::string& earlier) : out_(earlier) {}

  ApiResult<> add(const std::string& at, JsonValue item) {
    std::string_view type = item.find("type").is_given() ? item.find("type").text() : "message";
    if (type == "message") return add_message(at, item);
    if (type == "function_call") return add_call(at, item);
    if (type == "function_call_output") return add_result(at, item);
    if (type == "reasoning") return add_reasoning(at, item);
    return wrong_value(at + ".type", item.find("type"),
                       "'message', 'function_call', 'function_call_output' or 'reasoning'");
  }
  void add_user(std::string_view text) {
    flush();
    JsonWriter w;
    append(w.begin_object().field("role", "user").field("content", text).end_object().take());
  }
  std::string take() {
    flush();
    return std::move(out_);
  }

 private:
  ApiResult<> add_message(const std::string& at, JsonValue item) {
    std::string_view role = item.find("role").text();
    if (role != "user" && role != "system" && role != "developer" && role != "assistant")
      return wrong_value(at + ".role", item.find("role"), "'user', 'system', 'developer' or 'assistant'");
    DI_TRY(std::string content, read_content(at + ".content", item.find("content"), role == "assistant"));
    if (role == "assistant") {
      text_ += content;
      is_open_ = true;
      return {};
    }
    flush();
    JsonWriter w;
    append(w.begin_object().field("role", role).key("content").raw(content).end_object().take());
    return {};
  }

  // JSON parts, or for the assistant the bare text.
  static ApiResult<std::string> read_content(const std::string& at, JsonValue content, bool is_assistant) {
    JsonWriter parts;
    std::string text;
    if (content.is_string()) {
      if (is_assistant) return std::string(content.text());
      return parts.value(content.text()).take();
    }
    if (!content.is_array()) return wrong_value(at, content, "a string or a list of parts");
    parts.begin_array();
    int index = 0;
    for (JsonValue part : content) {
      std::string here = fmt::format("{}[{}]", at, index++);
      std::string_view type = part.find("type").text();
      if (type == "input_image" || type == "input_file" || type == "input_audio")
        return bad_field(here, fmt::format("{} is of type '{}'; this build reads text only", here, type));
      bool is_text = (type == "input_text" || type == "output_text" || type == "text") && part.find("text").is_string();
      if (!is_text) return wrong_value(here + ".type", part.find("type"), "'input_text' or 'output_text' with a text");
      text += part.find("text").text();
      parts.begin_object().field("type", "text").field("text", part.find("text").text()).end_object();
    }
    if (is_assistant) return text;
    return parts.end_array().take();
  }

  ApiResult<> add_call(const std::string& at, JsonValue item) {
    bool is_whole =
        item.find("call_id").is_string() && item.find("name").is_string() && item.find("arguments").is_string();
    if (!is_whole) return bad_field(at, at + " needs the strings call_id, name and arguments");
    JsonWriter w;
    w.begin_object().field("id", item.find("call_id").text()).field("type", "function").key("function").begin_object();
    w.field("name", item.find("name").text())
        .field("arguments", item.find("arguments").text())
        .end_object()
        .end_object();
    calls_ += calls_.empty() ? "" : ",";
    calls_ += w.text();
    is_open_ = true;
    return {};
  }

  ApiResult<> add_result(const std::string& at, JsonValue item) {
    if (!item.find("call_id").is_string()) return bad_field(at, at + ".call_id must be a string");
    DI_TRY(std::string content, read_content(at + ".output", item.find("output"), false));
    flush();
    JsonWriter w;
    w.begin_object().field("role", "tool").field("tool_call_id", item.find("call_id").text());
    append(w.key("content").raw(content).end_object().take());
    return {};
  }

  ApiResult<> add_reasoning(const std::string& at, JsonValue item) {
    JsonValue content = item.find("content");
    if (content.is_given() && !content.is_array()) return wrong_value(at + ".content", content, "a list");
    for (JsonValue part : content) reasoning_ += part.find("text").text();
    is_open_ = true;
    return {};
  }

  void flush() {
    if (!is_open_) return;
    JsonWriter w;
    w.begin_object().field("role", "assistant").field("content", text_);
    if (!reasoning_.empty()) w.field("reasoning_content", reasoning_);
    if (!calls_.empty()) w.key("tool_calls").raw("[" + calls_ + "]");
    append(w.end_object().take());
    text_.clear();
    reasoning_.clear();
    calls_.clear();
    is_open_ = false;
  }

  void append(const std::string& message) {
    if (!out_.empty()) out_ += ',';
    out_ += message;
  }

  std::string out_;
  std::string text_, reasoning_, calls_;  // of the assistant's message that is being gathered
  bool is_open_ = false;
};

ApiResult<std::string> read_input(JsonValue input, const std::string& earlier) {
  Messages messages(earlier);
  if (input.is_string()) {
    messages.add_user(input.text());
    return messages.take();
  }
  if (!input.is_array() || (input.size() == 0 && earlier.empty()))
    return wrong_value("input", input, "a string or a list of items");
  int index = 0;
  for (JsonValue item : input) DI_TRY_VOID(messages.add(fmt::format("input[{}]", index++), item));
  return messages.take();
}

ApiResult<> write_tools(JsonValue tools, JsonWriter& w) {
  if (!tools.is_given()) return {};
  if (!tools.is_array()) return wrong_value("tools", tools, "a list of tools");
  w.key("tools").begin_array();
  int index = 0;
  for (JsonValue tool : tools) {
    std::string at = fmt::format("tools[{}]", index++);
    if (tool.find("type").text() != "function")
      return wrong_value(at + ".type", tool.find("type"), "'function'; the service runs no tools of its own");
    w.begin_object().field("type", "function").key("function").begin_object();
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      if (tool.find(name).is_given()) w.key(name).raw(compact(tool.find(name)));
    }
    w.end_object().end_object();
  }
  w.end_array();
  return {};
}

ApiResult<> write_tool_choice(JsonValue choice, JsonWriter& w) {
  if (!choice.is_given()) return {};
  if (choice.is_string()) {
    w.field("tool_choice", choice.text());
    return {};
  }
  if (choice.find("type").text() != "function" || !choice.find("name").is_string())
    return wrong_value("tool_choice", choice, "'none', 'auto', 'required' or {\"type\": \"function\", \"name\"}");
  w.key("tool_choice").begin_object().field("type", "function").key("function").begin_object();
  w.field("name", choice.find("name").text()).end_object().end_object();
  return {};
}

ApiResult<> write_format(JsonValue format, JsonWriter& w) {
  if (!format.is_given()) return {};
  std::string_view type = format.find("type").text();
  if (type != "json_schema") {
    w.key("response_format").begin_object().field("type", type).end_object();
    return {};
  }
  if (!format.find("schema").is_object())
    return wrong_value("text.format.schema", format.find("schema"), "a JSON schema");
  w.key("response_format").begin_object().field("type", "json_schema").key("json_schema").begin_object();
  for (const char* name : {"name", "schema", "strict"}) {
    if (format.find(name).is_given()) w.key(name).raw(compact(format.find(name)));
  }
  w.end_object().end_object();
  return {};
}

}  // namespace

ApiResult<ResponseChat> response_to_chat(JsonValue root, const std::string& earlier) {
  ResponseChat chat;
  DI_TRY(chat.messages, read_input(root.find("input"), earlier));
  JsonWriter w;
  w.begin_object().key("messages").begin_array();
  JsonValue instructions = root.find("instructions");
  if (instructions.is_given()) {
    if (!instructions.is_string()) return wrong_value("instructions", instructions, "a string");
    w.begin_object().field("role", "system").field("content", instructions.text()).end_object();
  }
  if (!chat.messages.empty()) w.raw(chat.messages);
  w.end_array();
  DI_TRY_VOID(write_tools(root.find("tools"), w));
  DI_TRY_VOID(write_tool_choice(root.find("tool_choice"), w));
  JsonValue parallel = root.find("parallel_tool_calls");
  if (parallel.is_given()) w.key("parallel_tool_calls").raw(compact(parallel));
  DI_TRY_VOID(write_format(root.find("text").find("format"), w));
  JsonValue effort = root.find("reasoning").find("effort");
  if (effort.is_given()) w.key("reasoning_effort").raw(compact(effort));
  chat.body = w.end_object().take();
  return chat;
}

}  // namespace deepinfer::serve::openai
