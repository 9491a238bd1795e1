// The answers of /v1/messages: one object, or a stream of named events.
//
//   message_start, (content_block_start, content_block_delta ..., content_block_stop)*, message_delta, message_stop
//   on failure an event `error`
#pragma once

#include <memory>
#include <string>

#include "serve/responder.h"

namespace deepinfer::serve::anthropic {

struct MessageWriterOptions {
  std::string id, model;
  int64_t prompt_tokens = 0;
};

std::unique_ptr<Responder> make_message_stream(const MessageWriterOptions& options);
std::unique_ptr<Responder> make_message_whole(const MessageWriterOptions& options);

}  // namespace deepinfer::serve::anthropic
