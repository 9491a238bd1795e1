// What goes into the engine and what comes out of it.
//
//   A Request is one prompt with its parameters. It gives `sampling.n` choices. Every committed token is one
//   TokenEvent; each choice ends with exactly one terminal event, which carries the reason and the usage.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/sampling_params.h"

namespace deepinfer {

enum class FinishReason {
  kNone,       // not finished
  kStop,       // end token, stop id or stop string
  kLength,     // max_tokens or the context length
  kCancelled,  // by the caller
  kDeadline,   // its deadline passed
  kError,      // this request failed; the event's `error` says why
};
const char* finish_reason_name(FinishReason reason);

struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  std::string tenant;  // fairness between tenants; cached blocks are shared inside one tenant only
};

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Why the cache had no more of a prompt, for requests that may take from it.
enum class MissCause : uint8_t {
  kNone,      // it had everything up to the last place where a hit may end, or was not asked
  kNew,       // the first block that is missing was never there under this key and salt, or long ago
  kEvicted,   // it was there and had to make room
  kReplayed,  // it is there, made after a bounded replay, and the request wants exact blocks
  kBoundary,  // no hit may end in so short a prompt, or so early that running on from there would save nothing
};
const char* miss_cause_name(MissCause cause);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;                        // prompt tokens whose keys came from the prefix cache
  int64_t replayed_tokens = 0;                      // of these, tokens run again to rebuild window states
  bool from_stored_windows = false;                 // the states came from the cache too: nothing ran again
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // drafts verified, drafts accepted
  int64_t steps = 0;                                // decode steps
  MissCause miss_cause = MissCause::kNone;          // at its first start
  // Seconds until its grammar was compiled, then until it had a place in a step, then until its first token; each
  // is absent if it did not get so far, the first without a grammar as well.
  std::optional<double> grammar_s, queue_s, prefill_s;
};

struct TokenEvent {
  uint64_t request = 0;
  int choice = 0;
  int32_t token = -1;  // -1: a terminal event without a token
  std::string text;    // what this token adds to the text; may be empty, may hold several characters
  std::optional<float> logprob;
  std::vector<TopLogprob> top_logprobs;
  std::vector<std::optional<float>> prompt_logprobs;  // on the first event, if asked for: prompt tokens after the first
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop;  // the stop string that matched, if one did
  std::string error;
  bool is_user_error = false;  // of `error`: the request itself is at fault (a schema that does not compile)
  Usage usage;                 // on the terminal event
};

struct CompletionOutput {
  int index = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<std::optional<float>> logprobs;
  std::vector<std::vector<TopLogprob>> top_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  bool is_user_error = false;
  Usage usage;
};

struct RequestOutput {
  std::string prompt;  // text, where the caller gave text
  std::vector<int32_t> prompt_token_ids;
  std::vector<std::optional<float>> prompt_logprobs;
  std::vector<CompletionOutput> outputs;
};

}  // namespace deepinfer
