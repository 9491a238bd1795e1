#include "serve/structured.h"

#include <algorithm>

#include "engine/grammar_setup.h"

namespace deepinfer::serve {
namespace {

// Whether the answer's form was asked for. Tools alone leave the model free to call them as it was trained to.
bool is_constrained(const text::ChatRequest& chat) {
  if (chat.tools.empty()) return chat.format != text::ResponseFormat::kText;
  bool is_strict = std::any_of(chat.tools.begin(), chat.tools.end(), [](const auto& tool) { return tool.is_strict; });
  return is_strict || chat.is_single_call || chat.tool_choice == text::ToolChoice::kRequired;
}

}  // namespace

ApiResult<> constrain_output(const text::ChatRequest& chat, const text::ChatPrompt& prompt, SamplingParams& sampling) {
  if (!is_constrained(chat)) return {};
  auto output = engine::chat_constraint(chat, prompt);
  if (!output) return tl::unexpected(to_api_error(output.error()));
  sampling.so_args = std::move(*output);
  return {};
}

}  // namespace deepinfer::serve
