#include "serve/structured.h"

#include "engine/grammar_setup.h"

namespace deepinfer::serve {
ApiResult<> constrain_output(const text::ChatRequest& chat, const text::ChatPrompt& prompt, SamplingParams& sampling) {
  auto output = engine::chat_constraint(chat, prompt);
  if (!output) return tl::unexpected(to_api_error(output.error()));
  sampling.so_args = std::move(*output);
  return {};
}

}  // namespace deepinfer::serve
