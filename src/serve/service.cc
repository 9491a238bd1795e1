#include "serve/service.h"

#include <algorithm>

#include "base/log.h"
#include "serve/ids.h"
#include "serve/version.h"

namespace deepinfer::serve {
namespace {

// Bodies above it are read and tokenised by a worker: some tens of microseconds' worth stay on the loop.
constexpr std::size_t kInlineBytes = 8 << 10;
constexpr std::size_t kLongestRequestId = 128;
constexpr std::chrono::milliseconds kObservePeriod{250};
constexpr std::chrono::seconds kTickPeriod{1};

bool is_plain_id(std::string_view id) {
  auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  };
  return !id.empty() && id.size() <= kLongestRequestId && std::all_of(id.begin(), id.end(), is_plain);
}

// The key of a request: "Authorization: Bearer KEY" or "x-api-key: KEY".
std::string_view presented_key(const net::HttpRequest& request) {
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view value = request.header("authorization");
  if (value.size() > kBearer.size() && net::equal_ignoring_case(value.substr(0, kBearer.size()), kBearer)) {
    return value.substr(kBearer.size());
  }
  return request.header("x-api-key");
}

std::string folder_in(const std::string& folder, const char* name) {
  return folder.empty() ? "" : folder + "/" + name;
}

}  // namespace

Service::Service(net::Loop& the_loop, const ServeOptions& the_options, AccessLog log)
    : loop(the_loop),
      options(the_options),
      admission({.max_wait_s = the_options.max_wait_s, .max_requests = the_options.max_requests}),
      metrics(kVersion),
      written(the_options.stored_time, the_options.stored_bytes),
      responses(the_options.stored_time, the_options.stored_bytes),
      files(folder_in(the_options.data_dir, "files"), the_options.files_time, the_options.files_bytes),
      generations(the_loop, admission, metrics, written),
      batches(*this, folder_in(the_options.data_dir, "batches")),
      idempotency_(the_options.stored_time, the_options.stored_bytes),
      log_(std::move(log)) {
  loop.every(kObservePeriod, [this] { observe_engine(); });
  loop.every(kTickPeriod, [this] { generations.tick(net::Loop::Clock::now()); });
}

Result<void> Service::load_keys() {
  if (options.keys_file.empty()) return {};
  return keys_.load(options.keys_file);
}

Result<void> Service::load_data() {
  if (options.data_dir.empty()) return {};
  DI_TRY_VOID(make_folder(options.data_dir));
  DI_TRY(data_lock_, FolderLock::take(options.data_dir));
  DI_TRY_VOID(files.load());
  return batches.load();
}

std::optional<Principal> Service::principal_named(std::string_view name) const {
  if (keys_.is_open()) return name.empty() ? std::optional(Principal{}) : std::nullopt;
  return keys_.find_name(name);
}

void Service::set_model(Model model) {
  model_ = std::move(model);
  last_stats_ = model_->engine->stats();  // the warm-up says nothing of how fast it is
}

// ---- the way in -------------------------------------------------------------------------------------------------

net::HttpResponse Service::refuse(int status, const std::string& message) {
  metrics.http_request("unreadable", status, 0);
  ApiError error{.status = status, .message = message, .retry_after_s = status == 503 ? 1 : 0};
  return error_response(ApiStyle::kOpenAi, error, new_id("req-"));
}

CallPtr Service::open_call(std::shared_ptr<net::Exchange> exchange) {
  const net::HttpRequest& request = exchange->request;
  // Shared by the exchange's callback and the endpoint.
  auto call = std::make_shared<Call>();
  call->exchange = exchange;
  std::string_view wanted_id = request.header("x-request-id");
  call->request_id = is_plain_id(wanted_id) ? std::string(wanted_id) : new_id("req-");
  call->headers.push_back({"x-request-id", call->request_id});
  call->style = router.style_of(request.path);
  call->route = "unknown";
  ++num_calls_;
  exchange->on_close = [this, call](net::CloseReason reason) { end_call(*call, reason); };
  return call;
}

void Service::dispatch_to(const Router& to, std::shared_ptr<net::Exchange> exchange) {
  CallPtr call = open_call(std::move(exchange));
  const net::HttpRequest& request = call->request();
  if (add_cors_headers(*call) && request.method == "OPTIONS") return call->reply({.status = 204});
  auto route = to.find(request.method, request.path, call->path_id);
  if (!route) return call->reply_error(route.error());
  call->route = (*route)->pattern;
  call->style = (*route)->style;
  auto principal = authenticate(request, (*route)->access);
  if (!principal) return call->reply_error(principal.error());
  call->principal = std::move(*principal);
  (*route)->handler(call);
}

void Service::dispatch_as(const Principal& who, std::shared_ptr<net::Exchange> exchange) {
  CallPtr call = open_call(std::move(exchange));
  auto route = router.find(call->request().method, call->request().path, call->path_id);
  if (!route) return call->reply_error(route.error());
  call->route = (*route)->pattern;
  call->style = (*route)->style;
  call->principal = who;
  (*route)->handler(call);
}

ApiResult<Principal> Service::authenticate(const net::HttpRequest& request, Access access) const {
  if (access == Access::kPublic) return Principal{};
  if (keys_.is_open()) {
    bool is_local = request.peer == "unix" || request.peer == "127.0.0.1" || request.peer == "::1";
    if (access == Access::kAdmin && !is_local)
      return api_fail(403, "forbidden", "without a key file this is only open to clients on the same machine");
    return Principal{.is_admin = is_local};
  }
  std::string_view key = presented_key(request);
  if (key.empty())
    return api_fail(401, "missing_api_key", "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
  auto principal = keys_.find(key);
  if (!principal) return api_fail(401, "invalid_api_key", "this API key is not known");
  if (access == Access::kAdmin && !principal->is_admin)
    return api_fail(403, "forbidden", "this needs a key with the word admin");
  return *principal;
}

// True if the request names an origin that is allowed.
bool Service::add_cors_headers(Call& call) {
  std::string_view origin = call.request().header("origin");
  if (origin.empty()) return false;
  const auto& allowed = options.cors_origins;
  bool is_any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!is_any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return false;
  call.headers.push_back({"Access-Control-Allow-Origin", is_any ? "*" : std::string(origin)});
  call.headers.push_back({"Vary", "Origin"});
  call.headers.push_back({"Access-Control-Expose-Headers", "x-request-id, x-deepinfer-unknown-fields, retry-after"});
  if (call.request().method == "OPTIONS") {
    call.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
    std::string wanted(call.request().header("access-control-request-headers"));
    call.headers.push_back({"Access-Control-Allow-Headers", wanted.empty() ? "content-type, authorization" : wanted});
    call.headers.push_back({"Access-Control-Max-Age", "600"});
  }
  return true;
}

void Service::end_call(const Call& call, net::CloseReason reason) {
  --num_calls_;
  std::chrono::duration<double> taken = net::Loop::Clock::now() - call.exchange->begin;
  int status = reason == net::CloseReason::kDone ? call.exchange->status : 499;
  metrics.http_request(call.route, status, taken.count());
  log_.write(call);
  check_drained();
}

// ---- work -------------------------------------------------------------------------------------------------------

const Model* Service::model_for(Call& call) {
  if (is_ready()) return &*model_;
  metrics.rejected(is_draining_ ? "draining" : "loading");
  call.reply_error({.status = 503,
                    .message = is_draining_ ? "the service is shutting down" : "the model is being loaded",
                    .code = is_draining_ ? "shutting_down" : "loading",
                    .retry_after_s = is_draining_ ? 5 : 2});
  return nullptr;
}

// Of a call that model_for() gave a model.
Reading Service::reading_for(const Call& call) {
  return {.model = *model_, .tenant = call.principal.name, .written = &written, .responses = &responses};
}

void Service::offload_or_run(std::size_t bytes, std::function<void()> work, std::function<void()> done) {
  if (bytes > kInlineBytes) return loop.offload(std::move(work), std::move(done));
  work();
  done();
}

void Service::generate(CallPtr call, Reader read) {
  const Model* model = model_for(*call);
  if (model == nullptr) return;
  if (idempotency_.answer(call)) return;
  if (options.logs_prompts) call->logged_body = call->request().body;
  // Shared by the two halves, which run one after the other.
  auto plan = std::make_shared<ApiResult<GenerationPlan>>();
  auto body = std::make_shared<std::string>(std::move(call->exchange->request.body));
  std::size_t bytes = body->size();
  offload_or_run(
      bytes, [plan, body, from = reading_for(*call), read = std::move(read)] { *plan = read(from, std::move(*body)); },
      [this, call, plan, model] {
        if (!*plan) return call->reply_error(plan->error());
        if (model_for(*call) == nullptr) return;  // began to drain meanwhile
        generations.start(*model, call, std::move(**plan));
      });
}

void Service::compute(CallPtr call, Computation work) {
  if (model_for(*call) == nullptr) return;
  // Shared by the two halves, which run one after the other.
  auto answer = std::make_shared<ApiResult<std::string>>();
  auto body = std::make_shared<std::string>(std::move(call->exchange->request.body));
  std::size_t bytes = body->size();
  offload_or_run(
      bytes,
      [answer, body, from = reading_for(*call), work = std::move(work)] { *answer = work(from, std::move(*body)); },
      [call, answer] {
        if (!*answer) return call->reply_error(answer->error());
        call->reply_json(std::move(**answer));
      });
}

void Service::observe_engine() {
  if (!model_) return;
  EngineStats now = model_->engine->stats();
  double busy_ms = now.forward_ms + now.sampling_ms + now.draft_ms;
  double before_ms = last_stats_.forward_ms + last_stats_.sampling_ms + last_stats_.draft_ms;
  admission.observe(static_cast<double>(now.rows - last_stats_.rows), (busy_ms - before_ms) / 1000);
  overload.update(admission.take_load());
  const auto num_drafts = static_cast<int>(now.drafted_by_position.size());
  model_->engine->limit_crowded_drafts(overload.rung() >= Rung::kFewerDrafts ? (num_drafts + 1) / 2 : num_drafts);
  last_stats_ = std::move(now);
  check_drained();
}

// ---- the way out ------------------------------------------------------------------------------------------------

void Service::drain(std::chrono::seconds limit, std::function<void()> done) {
  is_draining_ = true;
  drain_end_ = net::Loop::Clock::now() + limit;
  on_drained_ = std::move(done);
  if (server_ != nullptr) server_->stop_keeping_alive();
  loop.post([this] { check_drained(); });
}

void Service::check_drained() {
  if (!is_draining_ || !on_drained_) return;
  if (net::Loop::Clock::now() >= drain_end_ && generations.num_active() > 0) {
    spdlog::warn("the time to drain is over; {} requests are ended", generations.num_active());
    drain_end_ += std::chrono::seconds(5);
    return generations.cancel_all({.status = 503, .message = "the service is shutting down", .code = "shutting_down"});
  }
  bool is_out_of_time = net::Loop::Clock::now() >= drain_end_;
  if ((num_calls_ > 0 || num_connections() > 0) && !is_out_of_time) return;
  loop.post(std::exchange(on_drained_, nullptr));
}

}  // namespace deepinfer::serve
