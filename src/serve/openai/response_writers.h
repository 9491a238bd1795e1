// The answers of /v1/responses: one object, or a stream of named events that build it.
//
//   response.created, response.in_progress,
//   (response.output_item.added, deltas and their done events, response.output_item.done)*,
//   response.completed | response.incomplete | response.failed
// The text of the whole object is made in one place, for the answer, the last event and the store alike.
#pragma once

#include <memory>
#include <string>

#include "serve/openai/response_store.h"
#include "serve/responder.h"

namespace deepinfer::serve::openai {

struct ResponseWriterOptions {
  std::string id, model, tenant;
  int64_t created_s = 0;
  std::string echoed;              // members of the request that the answer repeats: JSON, each followed by a comma
  std::string messages;            // the conversation so far
  ResponseStore* store = nullptr;  // nullptr: the answer is not kept
  bool is_stream = false;
};

std::unique_ptr<Responder> make_response_writer(const ResponseWriterOptions& options);

}  // namespace deepinfer::serve::openai
