// From the request's SamplingParams to what the row loop reads: checked once, when the request arrives.
//
// Not thread-safe in any part that changes; RowParams is immutable and shared by all steps of its request.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::sampling {

inline constexpr double kGreedyBelow = 1e-5;  // temperatures below it mean the arg-max (DeepInfer's clamp)
inline constexpr int kMaxTopLogprobs = 1000, kMaxChoices = 128, kMaxStops = 64, kMaxStopBytes = 1024, kMaxBias = 4096,
                     kMaxBadWords = 1024, kMaxBadWordLength = 64;

// What the engine knows and a request cannot: limits that the fields are checked against.
struct Limits {
  int vocab = 0;
  int64_t context_length = 0;
  int64_t prompt_length = 0;
};

// The error names the field, its value and the limit. so_args is the grammar's to check (grammar/structural_tag.h).
Result<void> validate(const SamplingParams& params, const Limits& limits);

struct Bias {
  int32_t id;
  float value;
};

// One request's parameters in the form of the row loop.
struct RowParams {
  bool is_greedy = false;
  float inverse_temperature = 1.0f;
  double top_p = 1.0;
  int top_k = 0;        // 0: off
  float min_p = 0.0f;   // 0: off
  int force_top_k = 0;  // SAMPLER_FORCE_TOPK: only the k best logits exist, before the temperature; 0: off
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;
  std::vector<Bias> bias;       // by ascending id, ids distinct
  std::vector<int32_t> banned;  // never emitted (DECODE_TOKEN_BLACKLIST), ascending
  std::vector<std::vector<int32_t>> bad_words;
  int32_t eos_id = -1;
  bool bans_first_eos = false;
  bool wants_raw_logprob = false, wants_processed_logprob = false, wants_smaller_mass = false;
  int top_logprobs = 0;
  LogprobKind logprob_kind = LogprobKind::kRaw;

  bool has_penalties() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
};

struct RowDefaults {
  int32_t eos_id = -1;
  std::span<const int32_t> banned;
  int force_top_k = 0;
};
RowParams make_row_params(const SamplingParams& params, const RowDefaults& defaults);

// The seed of a request that names none: a hash of the engine's seed and the request's id.
uint64_t derive_seed(uint64_t engine_seed, std::string_view request_id);

// DECODE_TOKEN_BLACKLIST: "0..3,7", values and closed ranges in strictly increasing order.
Result<std::vector<int32_t>> parse_banned_ids(std::string_view text, int vocab);

}  // namespace deepinfer::sampling
