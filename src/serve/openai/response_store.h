// What is kept of an answer of /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "serve/store.h"

namespace deepinfer::serve::openai {

struct StoredResponse {
  std::string body;  // the answer, JSON
  std::string
      messages;  // the conversation up to and with the answer: JSON messages of the chat API, with commas between
};

using ResponseStore = Store<StoredResponse>;

}  // namespace deepinfer::serve::openai
