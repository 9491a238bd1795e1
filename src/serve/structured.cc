#include "serve/structured.h"

#include <fmt/format.h>

namespace deepinfer::serve {
namespace {

tl::unexpected<ApiError> unsupported(std::string_view param, std::string message) {
  return tl::unexpected(ApiError{.message = std::move(message), .param = std::string(param), .code = "unsupported"});
}

}  // namespace

ApiResult<> constrain_output(const Model& model, const text::ChatRequest& chat, const text::ChatPrompt& prompt,
                             SamplingParams& sampling) {
  for (const text::ToolDefinition& tool : chat.tools) {
    if (tool.is_strict)
      return unsupported("tools",
                         fmt::format("tools: '{}' has strict: true; this build has no grammar engine", tool.name));
  }
  if (prompt.constraint.kind != text::OutputConstraint::Kind::kJson &&
      prompt.constraint.kind != text::OutputConstraint::Kind::kRegex)
    return {};
  StructuredOutput output{.schema_type = "json", .schema = prompt.constraint.schema};
  if (prompt.constraint.kind == text::OutputConstraint::Kind::kRegex) output.schema_type = "regex";
  if (chat.format == text::ResponseFormat::kJsonObject) output.schema_type = "json_object";
  if (chat.is_thinking && model.end_think_id) output.trigger_token_ids = {*model.end_think_id};
  sampling.so_args = std::move(output);
  if (auto failure = model.engine->check(sampling)) {
    return unsupported("response_format", "response_format: " + failure->message);
  }
  return {};
}

}  // namespace deepinfer::serve
