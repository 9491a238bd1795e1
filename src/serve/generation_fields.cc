#include "serve/generation_fields.h"

#include <algorithm>

namespace deepinfer::serve {

ApiResult<> read_logit_bias(JsonValue v, GenerationFields& out) {
  constexpr int kMost = 4096;
  if (!v.is_object()) return wrong_value("logit_bias", v, "an object of token ids and numbers from -100 to 100");
  if (v.size() > kMost)
    return bad_field("logit_bias", fmt::format("logit_bias has {} entries; the limit is {}", v.size(), kMost));
  for (JsonValue entry : v) {
    std::string_view key = entry.key();
    int32_t id = -1;
    auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0)
      return bad_field("logit_bias",
                       fmt::format("logit_bias holds the key '{}'; allowed: token ids", key.substr(0, 40)));
    double bias = 0;
    if (!parse_number(entry, bias) || !(bias >= -100 && bias <= 100))
      return wrong_value(fmt::format("logit_bias.{}", id), entry, "a number from -100 to 100");
    out.sampling.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
  return {};
}

ApiResult<> read_stream_options(JsonValue v, GenerationFields& out) {
  if (!v.is_object()) return wrong_value("stream_options", v, "an object");
  JsonValue usage = v.find("include_usage");
  if (usage.is_given() && !usage.is_bool()) return wrong_value("stream_options.include_usage", usage, "true or false");
  out.includes_usage = usage.is_true();
  return {};
}

ApiResult<> read_cache_mode(JsonValue v, GenerationFields& out) {
  if (v.text() == "bounded") {
    out.sampling.cache_mode = CacheMode::kBounded;
  } else if (v.text() == "exact") {
    out.sampling.cache_mode = CacheMode::kExact;
  } else if (v.text() == "off") {
    out.sampling.cache_mode = CacheMode::kOff;
  } else {
    return wrong_value("cache_mode", v, "'bounded', 'exact' or 'off'");
  }
  return {};
}

ApiResult<> check_model(const Model& model, const std::string& name) {
  if (name.empty() || name == model.name) return {};
  return tl::unexpected(
      ApiError{.status = 404,
               .message = fmt::format("model '{}' is not served here; served: '{}'", name, model.name),
               .param = "model",
               .code = "model_not_found"});
}

void apply_official_sampling(bool is_thinking, SamplingParams& sampling) {
  constexpr double kLeastTopP = 0.95;
  if (is_thinking) {
    sampling.temperature = 1;
    sampling.top_p = std::max(sampling.top_p, kLeastTopP);
  } else {
    sampling.top_p = 1;
  }
}

ApiResult<> fit_to_context(const Model& model, int64_t prompt_tokens, std::optional<int64_t> wanted, int64_t usual,
                           std::string_view field, SamplingParams& sampling) {
  int64_t room = model.max_model_len - prompt_tokens;
  auto overflow = [](std::string_view param, std::string message) {
    return tl::unexpected(
        ApiError{.message = std::move(message), .param = std::string(param), .code = "context_length_exceeded"});
  };
  if (prompt_tokens == 0) return bad_field("prompt", "the prompt is empty; at least one token is needed");
  if (room < 1) {
    return overflow("messages",
                    fmt::format("the prompt has {} tokens; the context length is {}, one of them for the answer",
                                prompt_tokens, model.max_model_len));
  }
  if (wanted && *wanted > room) {
    return overflow(field, fmt::format("{} {} and the prompt of {} tokens exceed the context length of {}; {} are left",
                                       field, *wanted, prompt_tokens, model.max_model_len, room));
  }
  sampling.max_tokens = static_cast<int>(wanted ? *wanted : std::min(usual, room));
  return {};
}

ApiResult<> check_sampling(const Model& model, const SamplingParams& sampling) {
  SamplingParams p = sampling;
  p.max_tokens = 1;  // compared with the context by fit_to_context, which knows the prompt
  if (auto failure = model.engine->check(p)) {
    ApiError e = invalid_request(failure->message);
    if (!failure->is_user_error) e.status = 500;
    return tl::unexpected(std::move(e));
  }
  return {};
}

}  // namespace deepinfer::serve
