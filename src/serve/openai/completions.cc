#include "serve/openai/completions.h"

#include "serve/generation_fields.h"
#include "serve/ids.h"
#include "serve/openai/completion_writers.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

constexpr int kMaxPrompts = 128;
constexpr int64_t kMaxChoices = 256;
constexpr int64_t kUsualTokens = 16;  // the API's default
constexpr std::size_t kMaxPromptTokens = std::size_t{1} << 21;

struct CompletionFields : GenerationFields {
  std::vector<std::string> texts;         // prompts as text
  std::vector<std::vector<int32_t>> ids;  // or as token ids
  bool has_prompt = false;
  std::string suffix;
  bool echoes = false;
  std::optional<int> logprobs;
  int best_of = 0;
};

// A string, a list of strings, a list of token ids, or a list of such lists.
ApiResult<> read_prompt(JsonValue v, CompletionFields& out) {
  out.has_prompt = true;
  if (v.is_string()) {
    out.texts.emplace_back(v.text());
    return {};
  }
  if (!v.is_array() || v.size() == 0)
    return wrong_value("prompt", v, "a string, a list of token ids, or a list of either");
  if ((*v.begin()).is_number()) {
    DI_TRY(std::vector<int32_t> ids, read_token_ids("prompt", v, kMaxPromptTokens));
    out.ids.push_back(std::move(ids));
    return {};
  }
  if (v.size() > kMaxPrompts)
    return bad_field("prompt", fmt::format("prompt has {} entries; the limit is {}", v.size(), kMaxPrompts));
  bool is_text = (*v.begin()).is_string();
  for (JsonValue entry : v) {
    std::string name = fmt::format("prompt[{}]", out.texts.size() + out.ids.size());
    if (is_text) {
      if (!entry.is_string()) return wrong_value(name, entry, "a string, as the first one is");
      out.texts.emplace_back(entry.text());
    } else {
      DI_TRY(std::vector<int32_t> ids, read_token_ids(name, entry, kMaxPromptTokens));
      out.ids.push_back(std::move(ids));
    }
  }
  return {};
}

const FieldTable<CompletionFields>& completion_fields() {
  using F = CompletionFields;
  static const FieldTable<F> table = joined<F>({serving_fields<F>(),
                                                sampling_fields<F>(),
                                                choice_fields<F>(),
                                                {
                                                    custom<F>("prompt", read_prompt),
                                                    string_of<F>("suffix", &F::suffix, std::size_t{32} << 20),
                                                    integer_of<F>("max_tokens", &F::max_tokens, 1, 1 << 30),
                                                    boolean_of<F>("echo", &F::echoes),
                                                    integer_of<F>("logprobs", &F::logprobs, 0, 20),
                                                    integer_of<F>("best_of", &F::best_of, 1, 128),
                                                    refused<F>("response_format", "use /v1/chat/completions"),
                                                }});
  return table;
}

ApiResult<> check_combinations(const CompletionFields& f) {
  if (!f.has_prompt) return bad_field("prompt", "prompt is missing; a string or token ids are needed");
  if (f.best_of > f.sampling.n)
    return bad_field("best_of", fmt::format("best_of {} above n {} is not supported: answers are not ranked", f.best_of,
                                            f.sampling.n));
  int64_t num_choices = static_cast<int64_t>(f.texts.size() + f.ids.size()) * f.sampling.n;
  if (num_choices > kMaxChoices)
    return bad_field("n", fmt::format("n {} for {} prompts makes {} choices; the limit is {}", f.sampling.n,
                                      f.texts.size() + f.ids.size(), num_choices, kMaxChoices));
  if (!f.suffix.empty() && f.echoes) return bad_field("echo", "echo true cannot be combined with a suffix");
  if (!f.suffix.empty() && !f.ids.empty())
    return bad_field("suffix", "suffix needs a prompt of text, not of token ids");
  if (f.is_stream && f.echoes && f.logprobs)
    return bad_field("echo", "echo true with logprobs is only supported with stream: false");
  return {};
}

}  // namespace

ApiResult<GenerationPlan> plan_completion(const Reading& from, std::string body) {
  const Model& model = from.model;
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  CompletionFields fields;
  GenerationPlan plan;
  DI_TRY_VOID(read_fields(tree.root(), completion_fields(), fields, plan.unknown_fields));
  DI_TRY_VOID(check_model(model, fields.model));
  DI_TRY_VOID(check_combinations(fields));
  for (const std::string& t : fields.texts) {
    auto ids = text::encode_completion(*model.tokenizer, t, fields.suffix, model.trusts_prompts);
    if (!ids) return tl::unexpected(to_api_error(ids.error()));
    fields.ids.push_back(std::move(*ids));
  }
  fields.sampling.stop = fields.stop;
  fields.sampling.logprobs = fields.logprobs.has_value();
  fields.sampling.top_logprobs = fields.logprobs.value_or(0);
  fields.sampling.prompt_logprobs = fields.echoes && fields.logprobs.has_value();
  if (model.uses_official_sampling) apply_official_sampling(false, fields.sampling);

  plan.id = new_id("cmpl-");
  CompletionWriterOptions options{.id = plan.id,
                                  .model = &model,
                                  .created_s = unix_seconds(),
                                  .wants_logprobs = fields.logprobs.has_value(),
                                  .echoes = fields.echoes,
                                  .includes_usage = fields.includes_usage,
                                  .returns_timings = fields.returns_timings,
                                  .num_per_prompt = fields.sampling.n};
  for (auto& ids : fields.ids) {
    SamplingParams sampling = fields.sampling;
    DI_TRY_VOID(fit_to_context(model, static_cast<int64_t>(ids.size()), fields.max_tokens, kUsualTokens, "max_tokens",
                               sampling));
    DI_TRY_VOID(check_sampling(model, sampling));
    if (fields.echoes) options.prompts.push_back(ids);
    plan.requests.push_back({.prompt = std::move(ids), .sampling = std::move(sampling), .tenant = {}});
  }
  plan.wants_token_ids = fields.returns_token_ids;
  plan.responder =
      fields.is_stream ? make_completion_stream(std::move(options)) : make_completion_whole(std::move(options));
  return plan;
}

void add_completions(Service& service) {
  service.router.add({.method = "POST", .pattern = "/v1/completions", .handler = [&service](CallPtr call) {
                        service.generate(std::move(call), plan_completion);
                      }});
}

}  // namespace deepinfer::serve::openai
