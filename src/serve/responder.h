// What a generation tells the endpoint that asked for it. Each API has a responder for streams and one for whole
// answers.
//
//   begin, (piece | choice_end | keep_alive)*, then finish or fail
// All on the loop. What fails before `begin` is answered without the responder.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/request.h"
#include "serve/call.h"
#include "text/output_parser.h"

namespace deepinfer::serve {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  std::vector<TopLogprob> top;
};

// What one choice gained since the last piece.
struct Piece {
  int choice = 0;
  std::span<const text::OutputDelta> deltas;
  std::span<const std::string> call_ids;                  // of all calls of the choice so far, by their index
  std::span<const TokenLogprob> logprobs;                 // only if asked for
  std::span<const int32_t> token_ids;                     // only if asked for
  std::span<const std::optional<float>> prompt_logprobs;  // once, if asked for
};

struct ChoiceEnd {
  int choice = 0;
  std::string_view finish_reason;  // stop, length, tool_calls
  std::string stop;                // the stop string that was found
};

// Sums over the choices of one call; a prompt counts once.
struct CallUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, replayed_tokens = 0;
  bool from_stored_windows = false;
  int64_t reasoning_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  // Until its grammar was compiled, until a step took it in, from there to its first token: the longest over its
  // prompts.
  double grammar_ms = 0, queue_ms = 0, prefill_ms = 0;
  double first_token_ms = 0, total_ms = 0;
};

class Responder {
 public:
  virtual ~Responder() = default;
  virtual void begin(const CallPtr&) {}
  virtual void piece(const Piece& piece) = 0;
  virtual void choice_end(const ChoiceEnd& end) = 0;
  virtual void finish(const CallPtr& call, const CallUsage& usage) = 0;
  virtual void fail(const CallPtr& call, const ApiError& error) = 0;
  virtual void keep_alive() {}
};

// Gathers whole choices; what remains is to write them down.
class CollectingResponder : public Responder {
 public:
  struct Choice {
    text::ParsedOutput output;
    std::vector<std::string> call_ids;
    std::vector<TokenLogprob> logprobs;
    std::vector<int32_t> token_ids;
    std::vector<std::optional<float>> prompt_logprobs;
    std::string finish_reason, stop;
  };

  void piece(const Piece& piece) override;
  void choice_end(const ChoiceEnd& end) override;
  void finish(const CallPtr& call, const CallUsage& usage) override { call->reply_json(body(usage)); }
  void fail(const CallPtr& call, const ApiError& error) override { call->reply_error(error); }

 protected:
  virtual std::string body(const CallUsage& usage) = 0;
  std::map<int, Choice> choices_;
};

}  // namespace deepinfer::serve
