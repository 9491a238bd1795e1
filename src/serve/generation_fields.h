// The fields that every generating endpoint takes, and what the engine is asked for because of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "serve/fields.h"
#include "serve/model.h"

namespace deepinfer::serve {

struct GenerationFields {
  std::string model;
  std::optional<int64_t> max_tokens;
  SamplingParams sampling;  // max_tokens is filled in when the prompt's length is known
  std::vector<std::string> stop;
  bool is_stream = false, includes_usage = false;
  bool returns_token_ids = false, returns_timings = false;
};

// Tables for what APIs have in common; T derives from GenerationFields.
//   serving_fields    every API: the model, streaming, and what the service adds to all of them
//   sampling_fields   the APIs of OpenAI
//   choice_fields     chat and text completions
template <typename T>
FieldTable<T> serving_fields();
template <typename T>
FieldTable<T> sampling_fields();
template <typename T>
FieldTable<T> choice_fields();

ApiResult<> read_logit_bias(JsonValue v, GenerationFields& out);
ApiResult<> read_stream_options(JsonValue v, GenerationFields& out);
ApiResult<> read_cache_mode(JsonValue v, GenerationFields& out);

// The served model's name, or nothing.
ApiResult<> check_model(const Model& model, const std::string& name);
// The official service's rules (encoding.md 6): thinking has temperature 1 and top_p of at least 0.95; without it top_p
// is 1.
void apply_official_sampling(bool is_thinking, SamplingParams& sampling);
// Checks the prompt and what is asked for against the context, fills in max_tokens (`usual` if none is asked for).
ApiResult<> fit_to_context(const Model& model, int64_t prompt_tokens, std::optional<int64_t> wanted, int64_t usual,
                           std::string_view field, SamplingParams& sampling);
// What the engine itself would refuse, before anything is queued.
ApiResult<> check_sampling(const Model& model, const SamplingParams& sampling);

// ---- the table --------------------------------------------------------------------------------------------------

// Reads into the `sampling` part of T.
template <typename T, typename M>
Field<T> sampling_number(std::string_view name, M SamplingParams::* member, double low, double high) {
  Field<SamplingParams> inner = number_of<SamplingParams>(name, member, low, high);
  return {std::string(name), [read = inner.read](JsonValue v, T& out) { return read(v, out.sampling); }};
}
template <typename T, typename M, typename L>
Field<T> sampling_integer(std::string_view name, M SamplingParams::* member, L low, L high) {
  using N = typename Inner<M>::Type;
  Field<SamplingParams> inner = integer_of<SamplingParams>(name, member, static_cast<N>(low), static_cast<N>(high));
  return {std::string(name), [read = inner.read](JsonValue v, T& out) { return read(v, out.sampling); }};
}

// Reads into the base of T.
template <typename T>
auto in_base(ApiResult<> (*read)(JsonValue, GenerationFields&)) {
  return [read](JsonValue v, T& out) { return read(v, out); };
}

template <typename T>
FieldTable<T> serving_fields() {
  return {
      string_of<T>("model", &GenerationFields::model, 256),
      boolean_of<T>("stream", &GenerationFields::is_stream),
      sampling_integer<T>("seed", &SamplingParams::seed, uint64_t{0}, ~uint64_t{0}),
      sampling_integer<T>("priority", &SamplingParams::priority, -1000, 1000),
      sampling_integer<T>("deadline_ms", &SamplingParams::deadline_ms, int64_t{1}, int64_t{86'400'000}),
      sampling_integer<T>("cache_keep", &SamplingParams::cache_keep_s, int64_t{0}, int64_t{86'400}),
      custom<T>("cache_salt",
                [](JsonValue v, T& out) -> ApiResult<> {
                  constexpr std::size_t kLongest = 256;
                  if (!v.is_string() || v.text().size() > kLongest)
                    return wrong_value("cache_salt", v, fmt::format("a string of up to {} bytes", kLongest));
                  out.sampling.cache_salt = std::string(v.text());
                  return {};
                }),
      custom<T>("cache_mode", in_base<T>(read_cache_mode)),
      custom<T>("golden_token_ids",
                [](JsonValue v, T& out) -> ApiResult<> {
                  DI_TRY(out.sampling.golden_token_ids, read_token_ids("golden_token_ids", v, 1 << 20, -1));
                  return {};
                }),
      ignored<T>("session_id"),
      ignored<T>("metadata"),
      ignored<T>("service_tier"),
  };
}

template <typename T>
FieldTable<T> sampling_fields() {
  return {
      sampling_number<T>("temperature", &SamplingParams::temperature, 0, 100),
      sampling_number<T>("top_p", &SamplingParams::top_p, 0, 1),
      sampling_integer<T>("top_k", &SamplingParams::top_k, -1, 1 << 30),
      sampling_number<T>("min_p", &SamplingParams::min_p, 0, 1),
      sampling_number<T>("repetition_penalty", &SamplingParams::repetition_penalty, 0.01, 100),
      sampling_number<T>("presence_penalty", &SamplingParams::presence_penalty, -2, 2),
      sampling_number<T>("frequency_penalty", &SamplingParams::frequency_penalty, -2, 2),
      custom<T>("stop_token_ids",
                [](JsonValue v, T& out) -> ApiResult<> {
                  DI_TRY(out.sampling.stop_token_ids, read_token_ids("stop_token_ids", v, 64));
                  return {};
                }),
      custom<T>("ignore_eos",
                [](JsonValue v, T& out) -> ApiResult<> {
                  if (!v.is_bool()) return wrong_value("ignore_eos", v, "true or false");
                  out.sampling.ignore_eos = v.is_true();
                  return {};
                }),
      custom<T>("logit_bias", in_base<T>(read_logit_bias)),
      ignored<T>("user"),
      ignored<T>("safety_identifier"),
      ignored<T>("prompt_cache_key"),
      ignored<T>("prompt_cache_options"),
      ignored<T>("prompt_cache_retention"),
  };
}

template <typename T>
FieldTable<T> choice_fields() {
  constexpr std::size_t kMaxStops = 16, kMaxStopBytes = 1024;
  return {
      sampling_integer<T>("n", &SamplingParams::n, 1, 128),
      custom<T>("stop",
                [](JsonValue v, T& out) -> ApiResult<> {
                  DI_TRY(out.stop, read_strings("stop", v, kMaxStops, kMaxStopBytes));
                  return {};
                }),
      custom<T>("stream_options", in_base<T>(read_stream_options)),
      boolean_of<T>("return_token_ids", &GenerationFields::returns_token_ids),
      boolean_of<T>("timings", &GenerationFields::returns_timings),
  };
}

}  // namespace deepinfer::serve
