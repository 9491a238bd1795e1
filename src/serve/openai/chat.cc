#include "serve/openai/chat.h"

#include "serve/chat_plan.h"
#include "serve/ids.h"
#include "serve/openai/chat_writers.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

struct ChatFields : GenerationFields {
  std::optional<int64_t> max_completion_tokens;
  bool wants_logprobs = false;
  std::optional<int> top_logprobs;
};

const FieldTable<ChatFields>& fields_of_chats() {
  using F = ChatFields;
  static const FieldTable<F> table =
      joined<F>({serving_fields<F>(),
                 sampling_fields<F>(),
                 choice_fields<F>(),
                 chat_fields<F>(),
                 {
                     integer_of<F>("max_tokens", &F::max_tokens, 1, 1 << 30),
                     integer_of<F>("max_completion_tokens", &F::max_completion_tokens, 1, 1 << 30),
                     boolean_of<F>("logprobs", &F::wants_logprobs),
                     integer_of<F>("top_logprobs", &F::top_logprobs, 0, 20),
                     // Read by text::parse_chat_request.
                     ignored<F>("messages"),
                     ignored<F>("parallel_tool_calls"),
                     ignored<F>("response_format"),
                     ignored<F>("thinking"),
                     ignored<F>("reasoning_effort"),
                     // Of the hosted service, without a meaning here.
                     ignored<F>("store"),
                     ignored<F>("verbosity"),
                     ignored<F>("moderation"),
                     refused<F>("functions", "use tools"),
                     refused<F>("function_call", "use tool_choice"),
                     refused<F>("audio", "the model writes text only"),
                     refused<F>("prediction", "drafts come from the model itself"),
                     refused<F>("web_search_options", "the service does not search"),
                     refused<F>("prompt_logprobs", "only /v1/completions with echo gives them"),
                     custom<F>("modalities",
                               [](JsonValue v, F&) -> ApiResult<> {
                                 bool is_text = v.is_array() && v.size() == 1 && (*v.begin()).text() == "text";
                                 if (!is_text) return wrong_value("modalities", v, "[\"text\"]");
                                 return {};
                               }),
                 }});
  return table;
}

}  // namespace

ApiResult<GenerationPlan> plan_chat(const Reading& from, std::string body) {
  const Model& model = from.model;
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  ChatFields fields;
  GenerationPlan plan;
  DI_TRY_VOID(read_fields(tree.root(), fields_of_chats(), fields, plan.unknown_fields));
  DI_TRY_VOID(check_model(model, fields.model));
  bool has_both = fields.max_tokens && fields.max_completion_tokens;
  if (has_both && *fields.max_tokens != *fields.max_completion_tokens)
    return bad_field("max_tokens", fmt::format("max_tokens {} and max_completion_tokens {} differ; give one of them",
                                               *fields.max_tokens, *fields.max_completion_tokens));
  if (fields.top_logprobs && *fields.top_logprobs > 0 && !fields.wants_logprobs)
    return bad_field("top_logprobs", fmt::format("top_logprobs {} needs logprobs: true", *fields.top_logprobs));
  fields.sampling.logprobs = fields.wants_logprobs;
  fields.sampling.top_logprobs = fields.top_logprobs.value_or(0);

  auto request = text::parse_chat_request(tree.root());
  if (!request) return tl::unexpected(to_api_error(request.error()));
  ChatLimits limits{.max_tokens = fields.max_completion_tokens ? fields.max_completion_tokens : fields.max_tokens,
                    .field = fields.max_completion_tokens ? "max_completion_tokens" : "max_tokens"};
  DI_TRY_VOID(plan_chat_request(from, *request, fields, limits, plan));
  plan.id = new_id("chatcmpl-");
  ChatWriterOptions options{.id = plan.id,
                            .model = &model,
                            .created_s = unix_seconds(),
                            .is_thinking = request->is_thinking,
                            .wants_logprobs = fields.wants_logprobs,
                            .includes_usage = fields.includes_usage,
                            .returns_timings = fields.returns_timings,
                            .num_choices = fields.sampling.n};
  plan.responder = fields.is_stream ? make_chat_stream(options) : make_chat_whole(options);
  return plan;
}

void add_chat(Service& service) {
  service.router.add({.method = "POST", .pattern = "/v1/chat/completions", .handler = [&service](CallPtr call) {
                        service.generate(std::move(call), plan_chat);
                      }});
}

}  // namespace deepinfer::serve::openai
