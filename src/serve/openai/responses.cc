#include "serve/openai/responses.h"

#include "serve/chat_plan.h"
#include "serve/ids.h"
#include "serve/json_writer.h"
#include "serve/openai/response_to_chat.h"
#include "serve/openai/response_writers.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

struct ResponseFields : GenerationFields {
  std::string previous_id;
  bool is_stored = true;
};

ApiResult<> read_include(JsonValue v, ResponseFields&) {
  if (!v.is_array()) return wrong_value("include", v, "a list");
  for (JsonValue entry : v) {
    if (entry.text() != "reasoning.encrypted_content")
      return wrong_value("include", entry, "'reasoning.encrypted_content', which has no effect");
  }
  return {};
}

ApiResult<> read_truncation(JsonValue v, ResponseFields&) {
  if (v.text() != "disabled") return wrong_value("truncation", v, "'disabled'");
  return {};
}

const FieldTable<ResponseFields>& response_fields() {
  using F = ResponseFields;
  static const FieldTable<F> table =
      joined<F>({serving_fields<F>(),
                 sampling_fields<F>(),
                 chat_fields<F>(),
                 {
                     integer_of<F>("max_output_tokens", &F::max_tokens, 1, 1 << 30),
                     string_of<F>("previous_response_id", &F::previous_id, 128),
                     boolean_of<F>("store", &F::is_stored),
                     custom<F>("include", read_include),
                     custom<F>("truncation", read_truncation),
                     // Read by response_to_chat.
                     ignored<F>("input"),
                     ignored<F>("instructions"),
                     ignored<F>("parallel_tool_calls"),
                     ignored<F>("text"),
                     ignored<F>("reasoning"),
                     // Of the hosted service, without a meaning here.
                     ignored<F>("stream_options"),
                     refused<F>("background", "open a stream, or ask again with the same Idempotency-Key"),
                     refused<F>("conversation", "use previous_response_id"),
                     refused<F>("prompt", "prompt templates are not kept here"),
                     refused<F>("max_tool_calls", "the service runs no tools of its own"),
                     refused<F>("top_logprobs", "use /v1/chat/completions"),
                 }});
  return table;
}

// Members of the request that the answer repeats, with the API's defaults.
std::string echoed_members(JsonValue root) {
  constexpr std::pair<const char*, const char*> kMembers[] = {{"instructions", "null"},
                                                              {"max_output_tokens", "null"},
                                                              {"metadata", "{}"},
                                                              {"tools", "[]"},
                                                              {"tool_choice", "\"auto\""},
                                                              {"parallel_tool_calls", "true"},
                                                              {"temperature", "1.0"},
                                                              {"top_p", "1.0"},
                                                              {"previous_response_id", "null"},
                                                              {"truncation", "\"disabled\""},
                                                              {"store", "true"},
                                                              {"user", "null"},
                                                              {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                                              {"text", "{\"format\":{\"type\":\"text\"}}"}};
  std::string out;
  for (auto [name, fallback] : kMembers) {
    std::string value = fallback;
    if (root.find(name).is_given()) {
      value.clear();
      text::append_json(root.find(name), text::JsonStyle::kCompact, value);
    }
    out += fmt::format("\"{}\":{},", name, value);
  }
  return out;
}

ApiError not_stored(std::string_view id) {
  return {.status = 404,
          .message = fmt::format(
              "there is no stored response '{}'; it never was, belongs to another key, or its time is over", id),
          .param = "previous_response_id",
          .code = "response_not_found"};
}

void show(ResponseStore& store, Call& call) {
  auto stored = store.get(call.principal.name, call.path_id, std::chrono::steady_clock::now());
  if (!stored) return call.reply_error(not_stored(call.path_id));
  call.reply_json(std::move(stored->body));
}

void remove(ResponseStore& store, Call& call) {
  if (!store.remove(call.principal.name, call.path_id)) return call.reply_error(not_stored(call.path_id));
  JsonWriter w;
  w.begin_object().field("id", call.path_id).field("object", "response").field("deleted", true).end_object();
  call.reply_json(w.take());
}

void cancel(Service& service, ResponseStore& store, Call& call) {
  if (service.generations.cancel(call.principal, call.path_id)) {
    JsonWriter w;
    w.begin_object().field("id", call.path_id).field("object", "response").field("status", "cancelled").end_object();
    return call.reply_json(w.take());
  }
  show(store, call);
}

}  // namespace

ApiResult<GenerationPlan> plan_response(const Reading& from, std::string body) {
  const Model& model = from.model;
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  JsonValue root = tree.root();
  ResponseFields fields;
  GenerationPlan plan;
  DI_TRY_VOID(read_fields(root, response_fields(), fields, plan.unknown_fields));
  DI_TRY_VOID(check_model(model, fields.model));
  StoredResponse previous;
  if (!fields.previous_id.empty()) {
    auto found = from.responses->get(from.tenant, fields.previous_id, std::chrono::steady_clock::now());
    if (!found) return tl::unexpected(not_stored(fields.previous_id));
    previous = std::move(*found);
  }
  DI_TRY(ResponseChat chat, response_to_chat(root, previous.messages));
  auto request = text::parse_chat_request(std::move(chat.body));
  if (!request) return tl::unexpected(to_api_error(request.error()));
  ChatLimits limits{.max_tokens = fields.max_tokens, .field = "max_output_tokens", .format_field = "text.format"};
  DI_TRY_VOID(plan_chat_request(from, *request, fields, limits, plan));
  plan.id = new_id("resp_");
  plan.responder = make_response_writer({.id = plan.id,
                                         .model = model.name,
                                         .tenant = from.tenant,
                                         .created_s = unix_seconds(),
                                         .echoed = echoed_members(root),
                                         .messages = std::move(chat.messages),
                                         .store = fields.is_stored ? from.responses : nullptr,
                                         .is_stream = fields.is_stream});
  return plan;
}

void add_responses(Service& service) {
  ResponseStore& store = service.responses;
  service.router.add({.method = "POST", .pattern = "/v1/responses", .handler = [&service](CallPtr call) {
                        service.generate(std::move(call), plan_response);
                      }});
  service.router.add(
      {.method = "GET", .pattern = "/v1/responses/{id}", .handler = [&store](CallPtr call) { show(store, *call); }});
  service.router.add({.method = "DELETE", .pattern = "/v1/responses/{id}", .handler = [&store](CallPtr call) {
                        remove(store, *call);
                      }});
  service.router.add({.method = "POST",
                      .pattern = "/v1/responses/{id}/cancel",
                      .handler = [&service, &store](CallPtr call) { cancel(service, store, *call); }});
}

}  // namespace deepinfer::serve::openai
