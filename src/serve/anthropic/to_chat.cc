#include "serve/anthropic/to_chat.h"

#include "serve/json_writer.h"

namespace deepinfer::serve::anthropic {
namespace {

std::string compact(JsonValue v) {
  std::string out;
  text::append_json(v, text::JsonStyle::kCompact, out);
  return out;
}

// Text of a string or of a list of text blocks, as parts of a chat message.
ApiResult<> write_text_parts(std::string_view name, JsonValue v, JsonWriter& w) {
  if (v.is_string()) {
    w.value(v.text());
    return {};
  }
  if (!v.is_array()) return wrong_value(name, v, "a string or a list of text blocks");
  w.begin_array();
  int index = 0;
  for (JsonValue block : v) {
    std::string at = fmt::format("{}[{}]", name, index++);
    std::string_view type = block.find("type").text();
    if (type == "image") return bad_field(at, at + " is an image; this build reads text only");
    if (type != "text" || !block.find("text").is_string())
      return wrong_value(at, block, "a block {\"type\": \"text\", \"text\"}");
    w.begin_object().field("type", "text").field("text", block.find("text").text()).end_object();
  }
  w.end_array();
  return {};
}

ApiResult<> write_system(JsonValue system, JsonWriter& w) {
  if (!system.is_given()) return {};
  w.begin_object().field("role", "system").key("content");
  DI_TRY_VOID(write_text_parts("system", system, w));
  w.end_object();
  return {};
}

// Results of tools come first: they answer the message before.
ApiResult<> write_user(const std::string& name, JsonValue content, JsonWriter& w) {
  if (content.is_string()) {
    w.begin_object().field("role", "user").field("content", content.text()).end_object();
    return {};
  }
  if (!content.is_array()) return wrong_value(name, content, "a string or a list of blocks");
  JsonWriter parts;
  parts.begin_array();
  int index = 0, num_parts = 0;
  for (JsonValue block : content) {
    std::string at = fmt::format("{}[{}]", name, index++);
    std::string_view type = block.find("type").text();
    if (type == "tool_result") {
      if (!block.find("tool_use_id").is_string()) return bad_field(at, at + ".tool_use_id must be a string");
      w.begin_object().field("role", "tool").field("tool_call_id", block.find("tool_use_id").text()).key("content");
      JsonValue result = block.find("content");
      if (result.is_given()) {
        DI_TRY_VOID(write_text_parts(at + ".content", result, w));
      } else {
        w.value("");
      }
      w.end_object();
    } else if (type == "text" && block.find("text").is_string()) {
      parts.begin_object().field("type", "text").field("text", block.find("text").text()).end_object();
      ++num_parts;
    } else if (type == "image" || type == "document") {
      return bad_field(at, fmt::format("{} is of type '{}'; this build reads text only", at, type));
    } else {
      return wrong_value(at + ".type", block.find("type"), "'text' or 'tool_result'");
    }
  }
  parts.end_array();
  if (num_parts > 0 || index == 0) {
    w.begin_object().field("role", "user").key("content").raw(parts.text()).end_object();
  }
  return {};
}

struct AssistantBlocks {
  std::string text, reasoning;
  JsonWriter calls;
  int num_calls = 0;
};

ApiResult<> read_assistant_block(const std::string& at, JsonValue block, AssistantBlocks& out) {
  std::string_view type = block.find("type").text();
  if (type == "text" && block.find("text").is_string()) {
    out.text += block.find("text").text();
  } else if (type == "thinking") {
    out.reasoning += block.find("thinking").text();
  } else if (type == "tool_use") {
    bool is_whole = block.find("id").is_string() && block.find("name").is_string() && block.find("input").is_object();
    if (!is_whole) return bad_field(at, at + " needs the strings id and name and the object input");
    out.calls.begin_object().field("id", block.find("id").text()).field("type", "function");
    out.calls.key("function").begin_object().field("name", block.find("name").text());
    out.calls.field("arguments", compact(block.find("input"))).end_object().end_object();
    ++out.num_calls;
  } else if (type != "redacted_thinking") {
    return wrong_value(at + ".type", block.find("type"), "'text', 'thinking', 'redacted_thinking' or 'tool_use'");
  }
  return {};
}

ApiResult<> write_assistant(const std::string& name, JsonValue content, bool is_last, JsonWriter& w) {
  AssistantBlocks blocks;
  blocks.calls.begin_array();
  if (content.is_string()) {
    blocks.text = content.text();
  } else if (content.is_array()) {
    int index = 0;
    for (JsonValue block : content) {
      DI_TRY_VOID(read_assistant_block(fmt::format("{}[{}]", name, index++), block, blocks));
    }
  } else {
    return wrong_value(name, content, "a string or a list of blocks");
  }
  blocks.calls.end_array();
  w.begin_object().field("role", "assistant").field("content", blocks.text);
  if (!blocks.reasoning.empty()) w.field("reasoning_content", blocks.reasoning);
  if (blocks.num_calls > 0) w.key("tool_calls").raw(blocks.calls.text());
  if (is_last && blocks.num_calls == 0) w.field("prefix", true);
  w.end_object();
  return {};
}

ApiResult<> write_messages(JsonValue root, JsonWriter& w) {
  JsonValue messages = root.find("messages");
  if (!messages.is_array() || messages.size() == 0)
    return wrong_value("messages", messages, "a list of at least one message");
  w.key("messages").begin_array();
  DI_TRY_VOID(write_system(root.find("system"), w));
  int index = 0;
  for (JsonValue m : messages) {
    std::string at = fmt::format("messages[{}]", index++);
    std::string_view role = m.find("role").text();
    if (role == "user") {
      DI_TRY_VOID(write_user(at + ".content", m.find("content"), w));
    } else if (role == "assistant") {
      DI_TRY_VOID(write_assistant(at + ".content", m.find("content"), index == messages.size(), w));
    } else {
      return wrong_value(at + ".role", m.find("role"), "'user' or 'assistant'");
    }
  }
  w.end_array();
  return {};
}

ApiResult<> write_tools(JsonValue tools, JsonWriter& w) {
  if (!tools.is_given()) return {};
  if (!tools.is_array()) return wrong_value("tools", tools, "a list of tools");
  w.key("tools").begin_array();
  int index = 0;
  for (JsonValue tool : tools) {
    std::string at = fmt::format("tools[{}]", index++);
    JsonValue type = tool.find("type");
    if (type.is_given() && type.text() != "custom")
      return wrong_value(at + ".type", type, "'custom'; the service runs no tools of its own");
    JsonValue schema = tool.find("input_schema");
    if (!tool.find("name").is_string()) return wrong_value(at + ".name", tool.find("name"), "a string");
    if (!schema.is_object()) return wrong_value(at + ".input_schema", schema, "a JSON schema");
    w.begin_object().field("type", "function").key("function").begin_object();
    w.field("name", tool.find("name").text());
    if (tool.find("description").is_given()) w.key("description").raw(compact(tool.find("description")));
    w.key("parameters").raw(compact(schema));
    if (tool.find("strict").is_given()) w.key("strict").raw(compact(tool.find("strict")));
    w.end_object().end_object();
  }
  w.end_array();
  return {};
}

ApiResult<> write_tool_choice(JsonValue choice, JsonWriter& w) {
  if (!choice.is_given()) return {};
  std::string_view type = choice.find("type").text();
  if (type == "auto" || type == "none") {
    w.field("tool_choice", type);
  } else if (type == "any") {
    w.field("tool_choice", "required");
  } else if (type == "tool" && choice.find("name").is_string()) {
    w.key("tool_choice").begin_object().field("type", "function").key("function").begin_object();
    w.field("name", choice.find("name").text()).end_object().end_object();
  } else {
    return wrong_value("tool_choice.type", choice.find("type"), "'auto', 'any', 'none', or 'tool' with a name");
  }
  JsonValue single = choice.find("disable_parallel_tool_use");
  if (single.is_given() && !single.is_bool())
    return wrong_value("tool_choice.disable_parallel_tool_use", single, "true or false");
  if (single.is_true()) w.field("parallel_tool_calls", false);
  return {};
}

// Unlike in the chat API, the model thinks only if it is asked to.
ApiResult<> write_thinking(JsonValue root, JsonWriter& w) {
  JsonValue thinking = root.find("thinking");
  std::string_view type = thinking.is_given() ? thinking.find("type").text() : "disabled";
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return wrong_value("thinking.type", thinking.find("type"), "'enabled', 'adaptive' or 'disabled'");
  w.key("thinking").begin_object().field("type", type).end_object();
  JsonValue config = root.find("output_config");
  if (JsonValue effort = config.find("effort"); effort.is_given()) w.key("reasoning_effort").raw(compact(effort));
  JsonValue format = config.find("format").is_given() ? config.find("format") : root.find("output_format");
  if (!format.is_given()) return {};
  if (format.find("type").text() != "json_schema" || !format.find("schema").is_object())
    return wrong_value("output_config.format", format, "{\"type\": \"json_schema\", \"schema\": {...}}");
  w.key("response_format").begin_object().field("type", "json_schema").key("json_schema").begin_object();
  w.field("name", "answer").key("schema").raw(compact(format.find("schema"))).end_object().end_object();
  return {};
}

}  // namespace

ApiResult<std::string> to_chat_body(JsonValue root) {
  JsonWriter w;
  w.begin_object();
  DI_TRY_VOID(write_messages(root, w));
  DI_TRY_VOID(write_tools(root.find("tools"), w));
  DI_TRY_VOID(write_tool_choice(root.find("tool_choice"), w));
  DI_TRY_VOID(write_thinking(root, w));
  return w.end_object().take();
}

}  // namespace deepinfer::serve::anthropic
