// Where text and grammar meet: the vocabulary as a grammar sees it, and what the answer to a chat request must look
// like.
#pragma once

#include <optional>

#include "base/result.h"
#include "deepinfer/sampling_params.h"
#include "grammar/grammar.h"
#include "text/chat.h"

namespace deepinfer::engine {

// Added tokens are control tokens: only those that an answer may spell are known, and to structural tags alone.
grammar::Vocabulary grammar_vocabulary(const text::Tokenizer& tokenizer, int vocab, int32_t eos_id);

// so_args for SamplingParams from the request's tools and response_format; nothing if the answer is free. Tools
// constrain only where it is asked for: with `strict`, a required call, or a single one. Reasoning stays free: what is
// wanted begins behind </think>. Errors name the tool or the response_format.
Result<std::optional<StructuredOutput>> chat_constraint(const text::ChatRequest& request,
                                                        const text::ChatPrompt& prompt);

}  // namespace deepinfer::engine
