#include "serve/anthropic/messages.h"

#include "serve/anthropic/message_writers.h"
#include "serve/anthropic/to_chat.h"
#include "serve/chat_plan.h"
#include "serve/ids.h"
#include "serve/json_writer.h"
#include "serve/service.h"

namespace deepinfer::serve::anthropic {
namespace {

struct MessageFields : GenerationFields {};

const FieldTable<MessageFields>& message_fields() {
  using F = MessageFields;
  static const FieldTable<F> table =
      joined<F>({serving_fields<F>(),
                 chat_fields<F>(),
                 {
                     integer_of<F>("max_tokens", &F::max_tokens, 1, 1 << 30),
                     sampling_number<F>("temperature", &SamplingParams::temperature, 0, 1),
                     sampling_number<F>("top_p", &SamplingParams::top_p, 0, 1),
                     sampling_integer<F>("top_k", &SamplingParams::top_k, 1, 1 << 30),
                     custom<F>("stop_sequences",
                               [](JsonValue v, F& out) -> ApiResult<> {
                                 if (v.is_array() && v.size() == 0) return {};
                                 DI_TRY(out.stop, read_strings("stop_sequences", v, 16, 1024));
                                 return {};
                               }),
                     // Read by to_chat_body.
                     ignored<F>("messages"),
                     ignored<F>("system"),
                     ignored<F>("thinking"),
                     ignored<F>("output_config"),
                     ignored<F>("output_format"),
                     // Of the hosted service, without a meaning here.
                     ignored<F>("cache_control"),
                     ignored<F>("inference_geo"),
                     ignored<F>("diagnostics"),
                     ignored<F>("speed"),
                     ignored<F>("user_profile_id"),
                     ignored<F>("workspace_id"),
                     refused<F>("container", "the service runs no code"),
                     refused<F>("mcp_servers", "the service runs no tools of its own"),
                     refused<F>("context_management", "the whole conversation is always read"),
                 }});
  return table;
}

struct ReadMessage {
  MessageFields fields;
  text::ChatRequest chat;
};

ApiResult<ReadMessage> read_message(const Model& model, std::string body, std::vector<std::string>& unknown) {
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  ReadMessage out;
  DI_TRY_VOID(read_fields(tree.root(), message_fields(), out.fields, unknown));
  DI_TRY_VOID(check_model(model, out.fields.model));
  DI_TRY(std::string chat_body, to_chat_body(tree.root()));
  auto chat = text::parse_chat_request(std::move(chat_body));
  if (!chat) return tl::unexpected(to_api_error(chat.error()));
  out.chat = std::move(*chat);
  return out;
}

}  // namespace

ApiResult<GenerationPlan> plan_message(const Reading& from, std::string body) {
  const Model& model = from.model;
  GenerationPlan plan;
  DI_TRY(ReadMessage read, read_message(model, std::move(body), plan.unknown_fields));
  if (!read.fields.max_tokens) return bad_field("max_tokens", "max_tokens is missing; a whole number >= 1 is needed");
  bool is_stream = read.fields.is_stream;
  ChatLimits limits{.max_tokens = read.fields.max_tokens, .format_field = "output_config.format"};
  DI_TRY_VOID(plan_chat_request(from, read.chat, read.fields, limits, plan));
  plan.id = new_id("msg_");
  MessageWriterOptions options{
      .id = plan.id, .model = model.name, .prompt_tokens = static_cast<int64_t>(plan.requests[0].prompt.size())};
  plan.responder = is_stream ? make_message_stream(options) : make_message_whole(options);
  return plan;
}

ApiResult<std::string> count_tokens(const Reading& from, std::string body) {
  std::vector<std::string> unknown;
  DI_TRY(ReadMessage read, read_message(from.model, std::move(body), unknown));
  DI_TRY(text::ChatPrompt prompt, prompt_of(from, read.chat));
  DI_TRY(std::vector<int32_t> ids, prompt_ids(from.model, prompt));
  JsonWriter w;
  return w.begin_object().field("input_tokens", ids.size()).end_object().take();
}

void add_messages(Service& service) {
  service.router.add(
      {.method = "POST", .pattern = "/v1/messages", .style = ApiStyle::kAnthropic, .handler = [&service](CallPtr call) {
         service.generate(std::move(call), plan_message);
       }});
  service.router.add({.method = "POST",
                      .pattern = "/v1/messages/count_tokens",
                      .style = ApiStyle::kAnthropic,
                      .handler = [&service](CallPtr call) { service.compute(std::move(call), count_tokens); }});
}

}  // namespace deepinfer::serve::anthropic
