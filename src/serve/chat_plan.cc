#include "serve/chat_plan.h"

#include <algorithm>

#include "serve/structured.h"

namespace deepinfer::serve {

int64_t usual_max_tokens(const text::ChatRequest& chat) {
  constexpr int64_t kAnswer = 8192, kThinking = 65536, kMostThinking = 131072;
  constexpr int kMostEffort = 100;
  if (!chat.is_thinking) return kAnswer;
  return chat.effort == kMostEffort ? kMostThinking : kThinking;
}

namespace {

ApiResult<> refuse_images(const text::ChatRequest& chat) {
  for (std::size_t m = 0; m < chat.messages.size(); ++m) {
    const auto& parts = chat.messages[m].parts;
    auto image = std::find_if(parts.begin(), parts.end(), [](const auto& p) { return p.is_image; });
    if (image == parts.end()) continue;
    std::string param = fmt::format("messages[{}].content[{}]", m, image - parts.begin());
    return tl::unexpected(ApiError{
        .message = param + " is an image; this build reads text only", .param = param, .code = "images_not_supported"});
  }
  return {};
}

}  // namespace

ApiResult<text::ChatPrompt> prompt_of(const Reading& from, text::ChatRequest& chat) {
  DI_TRY_VOID(refuse_images(chat));
  if (from.written != nullptr) from.written->recall(from.tenant, chat);
  return text::render_chat(chat, from.model.chat);
}

ApiResult<std::vector<int32_t>> prompt_ids(const Model& model, const text::ChatPrompt& prompt) {
  auto ids = text::encode_prompt(*model.tokenizer, prompt);
  if (!ids) return tl::unexpected(to_api_error(ids.error()));
  return std::move(*ids);
}

ApiResult<> plan_chat_request(const Reading& from, text::ChatRequest& chat, GenerationFields& fields,
                              const ChatLimits& limits, GenerationPlan& plan) {
  const Model& model = from.model;
  DI_TRY(text::ChatPrompt prompt, prompt_of(from, chat));
  DI_TRY(std::vector<int32_t> ids, prompt_ids(model, prompt));

  SamplingParams& sampling = fields.sampling;
  DI_TRY_VOID(fit_to_context(model, static_cast<int64_t>(ids.size()), limits.max_tokens, usual_max_tokens(chat),
                             limits.field, sampling));
  if (model.uses_official_sampling) apply_official_sampling(chat.is_thinking, sampling);
  DI_TRY_VOID(constrain_output(chat, prompt, sampling));
  DI_TRY_VOID(check_sampling(model, sampling));

  plan.is_chat = true;
  plan.form_field = chat.tools.empty() ? limits.format_field : "tools";
  plan.format = std::move(prompt.output);
  plan.format.stops = std::move(fields.stop);
  plan.wants_token_ids = fields.returns_token_ids;
  plan.requests.push_back({.prompt = std::move(ids), .sampling = std::move(sampling), .tenant = {}});
  return {};
}

}  // namespace deepinfer::serve
