// The answers of /v1/chat/completions: a stream of chunks, or one object.
//
//   stream   data: {"choices": [{"index", "delta": {...}, "finish_reason": null}]}    ...
//            one chunk a choice with a finish_reason, the usage if asked for, then data: [DONE]
//            on failure an error event, then data: [DONE]
#pragma once

#include <memory>
#include <string>

#include "serve/model.h"
#include "serve/responder.h"

namespace deepinfer::serve::openai {

struct ChatWriterOptions {
  std::string id;
  const Model* model = nullptr;
  int64_t created_s = 0;
  bool is_thinking = false, wants_logprobs = false, includes_usage = false, returns_timings = false;
  int num_choices = 1;
};

std::unique_ptr<Responder> make_chat_stream(const ChatWriterOptions& options);
std::unique_ptr<Responder> make_chat_whole(const ChatWriterOptions& options);

}  // namespace deepinfer::serve::openai
