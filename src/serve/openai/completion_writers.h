// The answers of /v1/completions: a stream of chunks, or one object. Choice i of prompt p has index p * n + i.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/model.h"
#include "serve/responder.h"

namespace deepinfer::serve::openai {

struct CompletionWriterOptions {
  std::string id;
  const Model* model = nullptr;
  int64_t created_s = 0;
  bool wants_logprobs = false, echoes = false, includes_usage = false, returns_timings = false;
  int num_per_prompt = 1;
  std::vector<std::vector<int32_t>> prompts;  // to be echoed
};

std::unique_ptr<Responder> make_completion_stream(CompletionWriterOptions options);
std::unique_ptr<Responder> make_completion_whole(CompletionWriterOptions options);

}  // namespace deepinfer::serve::openai
