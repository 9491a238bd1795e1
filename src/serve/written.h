// What the model wrote, token for token, for answers that hold tool calls: kept by the id of the first call.
//
//   A client sends such an answer back as JSON that it may have written anew: other spaces, other order of members. A
//   prompt made from that differs from what the model wrote, and everything behind the difference misses the cache. So
//   where the message says the same as what was kept, the kept tokens are used; where it does not, the message counts.
//
// Thread-safe: workers read while the loop writes.
#pragma once

#include <string>
#include <vector>

#include "serve/store.h"
#include "text/chat_request.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace deepinfer::serve {

class WrittenAnswers {
 public:
  WrittenAnswers(std::chrono::seconds keep, int64_t max_bytes) : answers_(keep, max_bytes) {}

  // `ids`: the answer behind the prompt, without the end mark.
  void keep(const std::string& tenant, const std::string& first_call_id, const text::Tokenizer& tokenizer,
            const text::OutputFormat& format, const std::vector<int32_t>& ids);
  // Fills in Message::written where something is kept that says the same.
  void recall(const std::string& tenant, text::ChatRequest& chat);

 private:
  struct Answer {
    text::WrittenText written;
    bool is_thinking = false;
    text::Message message;  // what it says
  };
  Store<Answer> answers_;
};

// Whether two JSON texts mean the same: order of members and spelling of numbers aside.
bool same_json(std::string_view a, std::string_view b);

}  // namespace deepinfer::serve
