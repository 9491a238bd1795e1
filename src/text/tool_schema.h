// Tools as the API declares them -> the lines of the tool block and of the constraint.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_request.h"
#include "text/json_tree.h"

namespace deepinfer::text {

// `tools` is the request's list; missing or null gives no tools.
Result<std::vector<ToolDefinition>> parse_tools(JsonValue tools);

// Appends a schema in strict form: every object schema in it gets `additionalProperties: false` and requires all its
// properties.
void append_strict_schema(JsonValue schema, JsonStyle style, std::string& out);

}  // namespace deepinfer::text
