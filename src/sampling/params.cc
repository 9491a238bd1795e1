#include "sampling/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/hash.h"

namespace deepinfer::sampling {
namespace {

Result<void> in_range(const char* field, double value, double low, double high, const char* range) {
  if (value >= low && value <= high) return {};  // false for NaN
  return fail(Code::kInvalid, "{} {} is outside {}", field, value, range);
}

Result<void> check_id(const char* field, int64_t id, int vocab) {
  if (id >= 0 && id < vocab) return {};
  return fail(Code::kInvalid, "{} {} is outside the vocabulary of {} ids", field, id, vocab);
}

Result<void> check_count(const char* field, std::size_t count, int limit) {
  if (count <= static_cast<std::size_t>(limit)) return {};
  return fail(Code::kInvalid, "{} has {} entries, the limit is {}", field, count, limit);
}

Result<void> check_draw(const SamplingParams& p, int vocab) {
  DI_TRY_VOID(in_range("temperature", p.temperature, 0, 100, "[0, 100]"));
  if (!(p.top_p > 0 && p.top_p <= 1)) return fail(Code::kInvalid, "top_p {} is outside (0, 1]", p.top_p);
  if (p.top_k != -1 && p.top_k < 1) return fail(Code::kInvalid, "top_k {} is neither -1 (off) nor at least 1", p.top_k);
  DI_TRY_VOID(in_range("min_p", p.min_p, 0, 1, "[0, 1]"));
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100))
    return fail(Code::kInvalid, "repetition_penalty {} is outside (0, 100]", p.repetition_penalty);
  DI_TRY_VOID(in_range("presence_penalty", p.presence_penalty, -2, 2, "[-2, 2]"));
  DI_TRY_VOID(in_range("frequency_penalty", p.frequency_penalty, -2, 2, "[-2, 2]"));
  DI_TRY_VOID(check_count("logit_bias", p.logit_bias.size(), kMaxBias));
  for (auto [id, value] : p.logit_bias) {
    DI_TRY_VOID(check_id("logit_bias id", id, vocab));
    DI_TRY_VOID(in_range("logit_bias value", value, -100, 100, "[-100, 100]"));
  }
  return in_range("n", p.n, 1, kMaxChoices, "1..128");
}

Result<void> check_end(const SamplingParams& p, const Limits& limits) {
  if (p.max_tokens < 0) return fail(Code::kInvalid, "max_tokens {} is negative", p.max_tokens);
  if (limits.context_length > 0 && limits.prompt_length + std::max(p.max_tokens, 1) > limits.context_length)
    return fail(Code::kInvalid, "max_tokens {} exceeds context {} (prompt {})", p.max_tokens, limits.context_length,
                limits.prompt_length);
  DI_TRY_VOID(check_count("stop", p.stop.size(), kMaxStops));
  for (const std::string& s : p.stop) {
    if (s.empty()) return fail(Code::kInvalid, "stop holds an empty string");
    if (s.size() > kMaxStopBytes)
      return fail(Code::kInvalid, "a stop string has {} bytes, the limit is {}", s.size(), kMaxStopBytes);
  }
  DI_TRY_VOID(check_count("stop_token_ids", p.stop_token_ids.size(), kMaxStops));
  for (int32_t id : p.stop_token_ids) DI_TRY_VOID(check_id("stop_token_ids id", id, limits.vocab));
  DI_TRY_VOID(check_count("bad_words", p.bad_words.size(), kMaxBadWords));
  for (const auto& word : p.bad_words) {
    if (word.empty()) return fail(Code::kInvalid, "bad_words holds an empty sequence");
    DI_TRY_VOID(check_count("a bad_words sequence", word.size(), kMaxBadWordLength));
    for (int32_t id : word) DI_TRY_VOID(check_id("bad_words id", id, limits.vocab));
  }
  return {};
}

}  // namespace

Result<void> validate(const SamplingParams& p, const Limits& limits) {
  DI_TRY_VOID(check_draw(p, limits.vocab));
  DI_TRY_VOID(check_end(p, limits));
  DI_TRY_VOID(in_range("top_logprobs", p.top_logprobs, 0, kMaxTopLogprobs, "0..1000"));
  for (int32_t id : p.golden_token_ids)
    if (id != -1) DI_TRY_VOID(check_id("golden_token_ids id", id, limits.vocab));
  if (p.deadline_ms && *p.deadline_ms <= 0)
    return fail(Code::kInvalid, "deadline_ms {} is not positive", *p.deadline_ms);
  DI_TRY_VOID(in_range("cache_keep_s", static_cast<double>(p.cache_keep_s), 0, 86400, "0..86400"));
  return in_range("priority", p.priority, -1000, 1000, "[-1000, 1000]");
}

RowParams make_row_params(const SamplingParams& p, const RowDefaults& defaults) {
  RowParams r;
  r.is_greedy = p.temperature < kGreedyBelow;
  r.inverse_temperature = r.is_greedy ? 1.0f : static_cast<float>(1.0 / p.temperature);
  r.top_p = p.top_p;
  r.top_k = p.top_k < 0 ? 0 : p.top_k;
  r.min_p = static_cast<float>(p.min_p);
  r.force_top_k = defaults.force_top_k;
  r.repetition = static_cast<float>(p.repetition_penalty);
  r.presence = static_cast<float>(p.presence_penalty);
  r.frequency = static_cast<float>(p.frequency_penalty);
  for (auto [id, value] : p.logit_bias) r.bias.push_back({id, value});
  std::stable_sort(r.bias.begin(), r.bias.end(), [](const Bias& a, const Bias& b) { return a.id < b.id; });
  // A repeated id keeps its last value, as a JSON object would.
  for (std::size_t i = 1; i < r.bias.size();)
    if (r.bias[i - 1].id == r.bias[i].id)
      r.bias.erase(r.bias.begin() + static_cast<std::ptrdiff_t>(i - 1));
    else
      ++i;
  r.banned.assign(defaults.banned.begin(), defaults.banned.end());
  r.bad_words = p.bad_words;
  r.eos_id = defaults.eos_id;
  r.bans_first_eos = p.first_n_token_no_eos == 1;
  r.wants_raw_logprob = p.logprobs || p.top_logprobs > 0 || p.prompt_logprobs;
  r.wants_processed_logprob = r.wants_raw_logprob;
  r.wants_smaller_mass = p.sum_smaller_probs;
  r.top_logprobs = p.top_logprobs;
  r.logprob_kind = p.logprob_kind;
  return r;
}

uint64_t derive_seed(uint64_t engine_seed, std::string_view request_id) {
  std::string text = fmt::format("seed|{}|{}", engine_seed, request_id);
  Sha256 digest = sha256(std::as_bytes(std::span(text)));
  uint64_t seed;
  std::memcpy(&seed, digest.data(), sizeof seed);
  return seed;
}

Result<std::vector<int32_t>> parse_banned_ids(std::string_view text, int vocab) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  auto number = [&]() -> Result<int32_t> {
    int32_t value = 0;
    auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{})
      return fail(Code::kInvalid, "token blacklist '{}': a number is missing at byte {}", text, at - text.data());
    at = next;
    return value;
  };
  while (at < end) {
    DI_TRY(int32_t first, number());
    int32_t last = first;
    if (end - at >= 2 && at[0] == '.' && at[1] == '.') {
      at += 2;
      DI_TRY(last, number());
    }
    DI_TRY_VOID(check_id("token blacklist id", first, vocab));
    DI_TRY_VOID(check_id("token blacklist id", last, vocab));
    if (last < first || (!ids.empty() && first <= ids.back()))
      return fail(Code::kInvalid, "token blacklist '{}' is not strictly increasing at {}", text, first);
    for (int32_t id = first; id <= last; ++id) ids.push_back(id);
    if (at < end && (*at != ',' || ++at == end))
      return fail(Code::kInvalid, "token blacklist '{}': expected a comma and a value at byte {}", text,
                  at - text.data());
  }
  return ids;
}

}  // namespace deepinfer::sampling
