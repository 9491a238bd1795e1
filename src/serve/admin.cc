#include "serve/admin.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/log.h"
#include "serve/health.h"
#include "serve/json_writer.h"
#include "serve/service.h"
#include "serve/step_trace.h"

namespace deepinfer::serve {
namespace {

constexpr std::string_view kLevels[] = {"off", "error", "warn", "info", "debug"};

struct LevelFields {
  std::string level;
};

std::string level_now() {
  for (std::string_view name : kLevels) {
    if (spdlog::level::from_str(std::string(name)) == spdlog::get_level()) return std::string(name);
  }
  return "trace";
}

void show_level(Call& call) {
  JsonWriter w;
  call.reply_json(w.begin_object().field("level", level_now()).end_object().take());
}

ApiResult<> set_level(std::string body) {
  static const FieldTable<LevelFields> table = {string_of<LevelFields>("level", &LevelFields::level, 16)};
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  LevelFields fields;
  std::vector<std::string> unknown;
  DI_TRY_VOID(read_fields(tree.root(), table, fields, unknown));
  if (std::ranges::find(kLevels, fields.level) == std::end(kLevels))
    return wrong_value("level", tree.root().find("level"), fmt::format("one of {}", fmt::join(kLevels, ", ")));
  spdlog::set_level(spdlog::level::from_str(fields.level));
  return {};
}

void change_level(Call& call) {
  auto done = set_level(call.request().body);
  done ? show_level(call) : call.reply_error(done.error());
}

void drain(Service& service, Call& call) {
  JsonWriter w;
  w.begin_object().field("status", "draining").field("requests", service.generations.num_active()).end_object();
  call.reply_json(w.take(), 202);
  service.control.drain();
}

void reload(Service& service, Call& call) {
  auto done = service.control.reload();
  if (!done) return call.reply_error({.status = 409, .message = done.error().message, .code = "not_reloaded"});
  call.reply_json(R"({"status":"reloaded"})");
}

void trace(Service& service, Call& call) {
  std::vector<StepRecord> steps;
  if (service.model() != nullptr) steps = service.model()->engine->recent_steps();
  call.reply({.headers = {{"Content-Type", "application/json"},
                          {"Content-Disposition", "attachment; filename=\"deepinfer_trace.json\""}},
              .body = step_trace(steps, service.generations.spans())});
}

}  // namespace

void add_admin(Service& service) {
  auto add = [&service](const char* method, const char* pattern, std::function<void(Call&)> handler) {
    service.admin.add({.method = method,
                       .pattern = pattern,
                       .access = Access::kAdmin,
                       .handler = [handler = std::move(handler)](CallPtr call) { handler(*call); }});
  };
  add("GET", "/load", [&service](Call& call) { reply_load(service, call); });
  add("GET", "/metrics", [&service](Call& call) { reply_metrics(service, call); });
  add("GET", "/trace", [&service](Call& call) { trace(service, call); });
  add("GET", "/log_level", show_level);
  add("POST", "/log_level", change_level);
  add("POST", "/drain", [&service](Call& call) { drain(service, call); });
  add("POST", "/reload", [&service](Call& call) { reload(service, call); });
}

}  // namespace deepinfer::serve
