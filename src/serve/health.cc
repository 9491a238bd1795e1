#include "serve/health.h"

#include "serve/json_writer.h"
#include "serve/service.h"
#include "serve/version.h"

namespace deepinfer::serve {
namespace {

std::string_view state_of(const Service& service) {
  if (service.is_ready()) return "ready";
  return service.is_draining() ? "draining" : "loading";
}

void reply_state(const Service& service, Call& call) {
  JsonWriter w;
  w.begin_object().field("status", state_of(service)).end_object();
  call.reply_json(w.take(), service.is_ready() ? 200 : 503);
}

}  // namespace

void reply_load(const Service& service, Call& call) {
  EngineStats stats;
  if (service.model() != nullptr) stats = service.model()->engine->stats();
  JsonWriter w;
  w.begin_object().field("status", state_of(service)).field("requests", service.admission.num_requests());
  w.field("running", stats.num_running).field("waiting", stats.num_waiting);
  w.field("connections", service.num_connections());
  w.field("queue_work_s", service.admission.queued_work_s());
  w.field("predicted_wait_s", service.admission.predicted_wait_s(1));
  w.field("overload_rung", static_cast<int>(service.overload.rung()));
  w.field("blocks", stats.blocks).field("blocks_available", stats.blocks_available).end_object();
  call.reply_json(w.take());
}

void reply_metrics(Service& service, Call& call) {
  Metrics::Gauges now{.requests = service.admission.num_requests(),
                      .connections = service.num_connections(),
                      .queue_work_s = service.admission.queued_work_s(),
                      .predicted_wait_s = service.admission.predicted_wait_s(1),
                      .is_ready = service.is_ready(),
                      .rung = service.overload.rung()};
  if (service.model() != nullptr) now.engine = service.model()->engine->stats();
  call.reply(
      {.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, .body = service.metrics.text(now)});
}

namespace {

void reply_version(Call& call) {
  JsonWriter w;
  w.begin_object().field("version", kVersion).end_object();
  call.reply_json(w.take());
}

// Idempotent: an id that is not running was cancelled, has ended, or never was.
void cancel(Service& service, Call& call) {
  bool was_running = service.generations.cancel(call.principal, call.path_id);
  JsonWriter w;
  w.begin_object().field("id", call.path_id).field("cancelled", was_running).end_object();
  call.reply_json(w.take());
}

}  // namespace

void add_health(Service& service) {
  Router& r = service.router;
  auto open = [&r](const char* pattern, std::function<void(CallPtr)> handler) {
    r.add({.method = "GET", .pattern = pattern, .access = Access::kPublic, .handler = std::move(handler)});
  };
  open("/live", [](CallPtr call) { call->reply_json(R"({"status":"live"})"); });
  open("/ready", [&service](CallPtr call) { reply_state(service, *call); });
  open("/health", [&service](CallPtr call) { reply_state(service, *call); });
  open("/version", [](CallPtr call) { reply_version(*call); });
  open("/metrics", [&service](CallPtr call) { reply_metrics(service, *call); });
  r.add({.method = "GET", .pattern = "/load", .handler = [&service](CallPtr call) { reply_load(service, *call); }});
  r.add({.method = "POST", .pattern = "/v1/cancel/{id}", .handler = [&service](CallPtr call) {
           cancel(service, *call);
         }});
}

}  // namespace deepinfer::serve
