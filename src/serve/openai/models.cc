#include "serve/openai/models.h"

#include "serve/generation_fields.h"
#include "serve/json_writer.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

void write_model(JsonWriter& w, const Model& model) {
  w.begin_object().field("id", model.name).field("object", "model").field("created", model.created_s);
  w.field("owned_by", "deepinfer").field("max_model_len", model.max_model_len);
  w.field("namespace_digest", model.namespace_digest);
  w.key("capabilities").begin_array();
  for (const char* c : {"chat", "completion", "fill_in_the_middle", "reasoning", "tools", "logprobs"}) w.value(c);
  w.end_array().end_object();
}

void list_models(Service& service, const CallPtr& call) {
  const Model* model = service.model_for(*call);
  if (model == nullptr) return;
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  write_model(w, *model);
  call->reply_json(w.end_array().end_object().take());
}

void show_model(Service& service, const CallPtr& call) {
  const Model* model = service.model_for(*call);
  if (model == nullptr) return;
  auto known = check_model(*model, call->path_id);
  if (!known) return call->reply_error(known.error());
  JsonWriter w;
  write_model(w, *model);
  call->reply_json(w.take());
}

}  // namespace

void add_models(Service& service) {
  service.router.add(
      {.method = "GET", .pattern = "/v1/models", .handler = [&service](CallPtr call) { list_models(service, call); }});
  service.router.add({.method = "GET", .pattern = "/v1/models/{id}", .handler = [&service](CallPtr call) {
                        show_model(service, call);
                      }});
}

}  // namespace deepinfer::serve::openai
