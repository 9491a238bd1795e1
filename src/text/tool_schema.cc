#include "text/tool_schema.h"

#include <algorithm>
#include <unordered_set>

namespace deepinfer::text {
namespace {

enum class Holds { kData, kSchema, kSchemaList, kSchemaMap };

// What a keyword of JSON Schema holds.
Holds holds(std::string_view keyword) {
  for (std::string_view k : {"items", "additionalItems", "contains", "not", "if", "then", "else"}) {
    if (keyword == k) return Holds::kSchema;
  }
  for (std::string_view k : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
    if (keyword == k) return Holds::kSchemaList;
  }
  for (std::string_view k : {"properties", "patternProperties", "$defs", "definitions"}) {
    if (keyword == k) return Holds::kSchemaMap;
  }
  return Holds::kData;
}

struct Separators {
  const char* comma;
  const char* colon;
};

Separators separators(JsonStyle style) {
  return style == JsonStyle::kSpaced ? Separators{", ", ": "} : Separators{",", ":"};
}

void append_schema_list(JsonValue list, JsonStyle style, std::string& out) {
  const char* comma = "";
  out += '[';
  for (JsonValue schema : list) {
    out += comma;
    append_strict_schema(schema, style, out);
    comma = separators(style).comma;
  }
  out += ']';
}

void append_schema_map(JsonValue map, JsonStyle style, std::string& out) {
  const char* comma = "";
  out += '{';
  for (JsonValue schema : unique_members(map)) {
    out += comma;
    append_json_string(schema.key(), out);
    out += separators(style).colon;
    append_strict_schema(schema, style, out);
    comma = separators(style).comma;
  }
  out += '}';
}

void append_required(JsonValue properties, JsonStyle style, std::string& out) {
  const char* comma = "";
  out += '[';
  if (properties.is_object()) {
    for (JsonValue property : unique_members(properties)) {
      out += comma;
      append_json_string(property.key(), out);
      comma = separators(style).comma;
    }
  }
  out += ']';
}

void append_keyword(JsonValue value, JsonStyle style, std::string& out) {
  Holds kind = holds(value.key());
  if (kind == Holds::kSchemaList && value.is_array()) return append_schema_list(value, style, out);
  if (kind == Holds::kSchemaMap && value.is_object()) return append_schema_map(value, style, out);
  if (kind == Holds::kSchema) return append_strict_schema(value, style, out);
  append_json(value, style, out);
}

// Of type object, alone or among others, or with properties.
bool is_object_schema(JsonValue schema) {
  JsonValue type = schema.find("type");
  if (type.text() == "object" || schema.find("properties").is_object()) return true;
  for (JsonValue name : type) {
    if (name.text() == "object") return true;
  }
  return false;
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    char lower = static_cast<char>(c | 0x20);
    return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Result<ToolDefinition> parse_tool(JsonValue tool, int index) {
  JsonValue function = tool.find("function");
  if (tool.find("type").text() != "function" || !function.is_object()) {
    return fail(Code::kInvalid, "tools[{}] must be {{\"type\": \"function\", \"function\": {{...}}}}", index);
  }
  std::string_view name = function.find("name").text();
  if (!is_tool_name(name)) {
    return fail(Code::kInvalid, "tools[{}].function.name '{}' must be letters, digits, '_' or '-'", index, name);
  }
  JsonValue description = function.find("description"), parameters = function.find("parameters"),
            strict = function.find("strict");
  if (description.is_given() && !description.is_string()) {
    return fail(Code::kInvalid, "tools[{}].function.description must be a string", index);
  }
  if (parameters.is_given() && !parameters.is_object()) {
    return fail(Code::kInvalid, "tools[{}].function.parameters must be an object", index);
  }
  if (strict.is_given() && !strict.is_bool()) {
    return fail(Code::kInvalid, "tools[{}].function.strict must be true or false", index);
  }
  auto write_parameters = [&](JsonStyle style, std::string& out) {
    if (!parameters.is_given()) {
      out += "{}";
    } else if (strict.is_true()) {
      append_strict_schema(parameters, style, out);
    } else {
      append_json(parameters, style, out);
    }
  };
  ToolDefinition definition{.name = std::string(name), .is_strict = strict.is_true()};
  std::string& prompt = definition.prompt_json;
  prompt = "{\"name\": ";
  append_json_string(name, prompt);
  prompt += ", \"description\": ";
  append_json_string(description.text(), prompt);
  prompt += ", \"parameters\": ";
  write_parameters(JsonStyle::kSpaced, prompt);
  prompt += '}';

  std::string& constraint = definition.constraint_json;
  constraint = "{\"type\":\"function\",\"function\":{\"name\":";
  append_json_string(name, constraint);
  constraint += ",\"description\":";
  append_json(description, JsonStyle::kCompact, constraint);
  constraint += ",\"parameters\":";
  write_parameters(JsonStyle::kCompact, constraint);
  constraint += ",\"strict\":";
  append_json(strict, JsonStyle::kCompact, constraint);
  constraint += "}}";
  return definition;
}

}  // namespace

void append_strict_schema(JsonValue schema, JsonStyle style, std::string& out) {
  if (!schema.is_object()) return append_json(schema, style, out);
  auto [comma, colon] = separators(style);
  bool is_strict = is_object_schema(schema);
  JsonValue properties = schema.find("properties");
  const char* separator = "";
  auto begin_member = [&](std::string_view name) {
    out += separator;
    append_json_string(name, out);
    out += colon;
    separator = comma;
  };
  bool has_additional = false, has_required = false;
  out += '{';
  for (JsonValue value : unique_members(schema)) {
    begin_member(value.key());
    if (is_strict && value.key() == "additionalProperties") {
      out += "false";
      has_additional = true;
    } else if (is_strict && value.key() == "required") {
      append_required(properties, style, out);
      has_required = true;
    } else {
      append_keyword(value, style, out);
    }
  }
  if (is_strict && !has_additional) {
    begin_member("additionalProperties");
    out += "false";
  }
  if (is_strict && !has_required) {
    begin_member("required");
    append_required(properties, style, out);
  }
  out += '}';
}

Result<std::vector<ToolDefinition>> parse_tools(JsonValue tools) {
  std::vector<ToolDefinition> definitions;
  if (!tools.is_given()) return definitions;
  if (!tools.is_array()) return fail(Code::kInvalid, "tools must be a list");
  std::unordered_set<std::string> names;
  for (JsonValue tool : tools) {
    DI_TRY(ToolDefinition definition, parse_tool(tool, static_cast<int>(definitions.size())));
    if (!names.insert(definition.name).second) return fail(Code::kInvalid, "tools declare '{}' twice", definition.name);
    definitions.push_back(std::move(definition));
  }
  return definitions;
}

}  // namespace deepinfer::text
