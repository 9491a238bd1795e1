// What a request may ask of the sampler. Plain data; the engine checks it before the request is queued and answers with
// the field, the value and the limit (sampling/params.h).
//
// Order of operations on one row of logits (docs/sampling.md):
//   penalties (repetition, frequency, presence) -> logit_bias -> bad_words, banned end-of-text, grammar -> temperature
//   -> min_p, top_k, top_p, all measured on the same unfiltered softmax, the shortest prefix wins -> renormalise ->
//   draw
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {

// How a prefix hit regains the windows that are not cached (spec: serving.md 2.4).
enum class CacheMode : uint8_t {
  kBounded,  // replay one window: close to a cold run, not equal
  kExact,    // stored windows or deep replay, exact blocks only: equal to a cold run
  kOff,      // no hit is taken and nothing is published
};

// Which log-probabilities are reported.
enum class LogprobKind : uint8_t {
  kRaw,        // log-softmax of the model's logits, before penalties, mask and temperature
  kProcessed,  // of the distribution that was drawn from; 0 at temperature 0
};

// `so_args`: the answer follows a grammar (docs/structured_output.md). Compiled in the background: a schema that does
// not compile ends its request with one terminal event that carries the compiler's message and `is_user_error`.
struct StructuredOutput {
  // json            `schema` is a JSON schema; empty: any JSON. Only declared properties are allowed
  // json_object     any JSON object; `schema` is empty
  // regex, ebnf     `schema` is a regular expression for the whole answer, or a grammar whose first rule is `root`
  // choice          `schema` is a JSON list of strings, one of which is the answer
  // structural_tag  `schema` is the JSON of a structural tag; control tokens may appear where it spells them
  std::string schema_type;
  std::string schema;
  std::vector<int32_t> trigger_token_ids;  // the output is free until it holds this sequence; empty: never free
  std::optional<int32_t> bound_token_id;   // once it appears while the trigger is pending, the trigger is forced
  std::string prefix;                      // text at the end of the prompt that is already part of the answer
};

struct SamplingParams {
  // ---- the draw ----
  double temperature = 1.0;         // >= 0; below 1e-5: the largest logit, lowest id on ties
  double top_p = 1.0;               // (0, 1]; a token stays if the mass before it is <= top_p
  int top_k = -1;                   // -1 (off) or >= 1
  double min_p = 0.0;               // [0, 1]; a token stays if its probability is >= min_p x the largest
  double repetition_penalty = 1.0;  // > 0; positive logits of seen tokens are divided by it, negative ones multiplied
  double presence_penalty = 0.0;    // [-2, 2]; subtracted once from tokens of the output
  double frequency_penalty = 0.0;   // [-2, 2]; subtracted for every time the token is in the output
  std::vector<std::pair<int32_t, float>> logit_bias;  // added after the penalties; values in [-100, 100]
  std::optional<uint64_t> seed;  // `seq_seed`; absent: derived from the engine seed and the request id
  int n = 1;                     // independent answers from one prompt, 1..128

  // ---- where it ends ----
  int max_tokens = 16;  // >= 0; 0 becomes 1
  bool ignore_eos = false;
  int first_n_token_no_eos = 0;   // 1: end-of-text may not be the first token of the output; other values do nothing
  std::vector<std::string> stop;  // not part of the text that is returned
  std::vector<int32_t> stop_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // id sequences that may not appear in the output

  // ---- what is reported ----
  bool logprobs = false;
  int top_logprobs = 0;          // alternatives per output token, 0..1000
  bool prompt_logprobs = false;  // runs without truncation and without a prefix hit
  LogprobKind logprob_kind = LogprobKind::kRaw;
  bool sum_smaller_probs = false;  // mass of tokens not more likely than the emitted one

  // ---- what is forced ----
  std::vector<int32_t> golden_token_ids;  // the output, token by token; -1 leaves a position free
  std::optional<StructuredOutput> so_args;

  // ---- how it is served ----
  int priority = 0;                     // larger is served first; waiting raises it
  std::optional<int64_t> deadline_ms;   // from submission; the request ends with kDeadline when it passes
  std::optional<CacheMode> cache_mode;  // absent: the engine's default, kExact with an explicit seed
  std::string cache_salt;               // hits are shared only among requests of one salt
  int64_t cache_keep_s = 0;             // keep the blocks of this request at least so long, 0: no wish
};

}  // namespace deepinfer
