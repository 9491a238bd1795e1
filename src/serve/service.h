// The service: what all endpoints share, and the way of a request to one of them.
//
//   HttpServer --> dispatch: request id, CORS, route, key --> endpoint --> (worker) --> Generations --> engine
//
// Everything runs on the loop except `read` functions of generate(), which see the body and the model only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/http_server.h"
#include "net/loop.h"
#include "serve/access_log.h"
#include "serve/admission.h"
#include "serve/folder.h"
#include "serve/generation.h"
#include "serve/idempotency.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/model.h"
#include "serve/openai/batches.h"
#include "serve/openai/file_store.h"
#include "serve/options.h"
#include "serve/overload.h"
#include "serve/reading.h"
#include "serve/router.h"

namespace deepinfer::serve {

class Service {
 public:
  Service(net::Loop& loop, const ServeOptions& options, AccessLog log);

  // Reads the key file, if there is one.
  Result<void> load_keys();
  // Takes over files and batches of an earlier process, if there is a folder for them. Keys have to be there.
  Result<void> load_data();
  // Who has this name now; nothing if no key has it.
  std::optional<Principal> principal_named(std::string_view name) const;
  // From now on requests are accepted.
  void set_model(Model model);
  // Requests are refused; calls `done` when none is left. After `limit` those that remain end with an error.
  void drain(std::chrono::seconds limit, std::function<void()> done);

  // A request that came in over the service's own port, or over the admin port.
  void dispatch(std::shared_ptr<net::Exchange> exchange) { dispatch_to(router, std::move(exchange)); }
  void dispatch_admin(std::shared_ptr<net::Exchange> exchange) { dispatch_to(admin, std::move(exchange)); }
  // A request that the service makes of itself for somebody.
  void dispatch_as(const Principal& who, std::shared_ptr<net::Exchange> exchange);
  net::HttpResponse refuse(int status, const std::string& message);

  // Answers with 503 and returns nothing while the model is loading or the service drains.
  const Model* model_for(Call& call);
  // Reads the body with `read`, on a worker if it is large, and runs what it gives.
  using Reader = std::function<ApiResult<GenerationPlan>(const Reading&, std::string body)>;
  void generate(CallPtr call, Reader read);
  // The same for answers that need no generation: `work` gives the body of the answer.
  using Computation = std::function<ApiResult<std::string>(const Reading&, std::string body)>;
  void compute(CallPtr call, Computation work);

  // How fast the engine is and how much waits for it. Called several times a second.
  void observe_engine();

  bool is_ready() const { return model_.has_value() && !is_draining_; }
  const Model* model() const { return model_ ? &*model_ : nullptr; }
  bool is_draining() const { return is_draining_; }
  int num_connections() const { return server_ != nullptr ? server_->num_connections() : 0; }
  void set_server(net::HttpServer* server) { server_ = server; }

  net::Loop& loop;
  const ServeOptions options;
  Router router, admin;
  // What only the process as a whole can do.
  struct Control {
    std::function<void()> drain;
    std::function<Result<void>()> reload;  // keys and certificate
  };
  Control control;
  Admission admission;
  Overload overload;
  Metrics metrics;
  WrittenAnswers written;
  openai::ResponseStore responses;
  openai::FileStore files;
  Generations generations;
  openai::Batches batches;

 private:
  Reading reading_for(const Call& call);
  void offload_or_run(std::size_t bytes, std::function<void()> work, std::function<void()> done);
  CallPtr open_call(std::shared_ptr<net::Exchange> exchange);
  void dispatch_to(const Router& to, std::shared_ptr<net::Exchange> exchange);
  bool add_cors_headers(Call& call);
  ApiResult<Principal> authenticate(const net::HttpRequest& request, Access access) const;
  void end_call(const Call& call, net::CloseReason reason);
  void check_drained();

  std::optional<FolderLock> data_lock_;
  Keys keys_;
  Idempotency idempotency_;
  AccessLog log_;
  std::optional<Model> model_;
  net::HttpServer* server_ = nullptr;
  int num_calls_ = 0;  // being answered
  bool is_draining_ = false;
  net::Loop::Clock::time_point drain_end_;
  std::function<void()> on_drained_;
  EngineStats last_stats_;
};

}  // namespace deepinfer::serve
