// The messages of a chat request: reading and checking them.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/chat_request.h"
#include "text/json_tree.h"

namespace deepinfer::text {

// Reads the list `messages` of a request; at least one message. Tool results are put in the order of their calls.
Result<std::vector<Message>> parse_messages(JsonValue messages, const ChatPolicy& policy);

}  // namespace deepinfer::text
