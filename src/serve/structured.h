// What an answer must look like -> the engine's grammar (docs/structured_output.md).
#pragma once

#include "deepinfer/sampling_params.h"
#include "serve/api_error.h"
#include "text/chat.h"

namespace deepinfer::serve {

// Sets `sampling.so_args` from response_format, tools and tool_choice. Tools constrain only where it is asked for: with
// `strict`, a required call, or a single one.
ApiResult<> constrain_output(const text::ChatRequest& chat, const text::ChatPrompt& prompt, SamplingParams& sampling);

}  // namespace deepinfer::serve
