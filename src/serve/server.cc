#include "serve/server.h"

#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/log.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "serve/endpoints.h"
#include "serve/ids.h"
#include "serve/otlp.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

constexpr int kSignalExit = 128;  // plus the signal's number, as shells have it

// One token through the whole engine, so that the first request meets warm memory.
void warm_up(Engine& engine) {
  Request request{.prompt = {engine.eos_token_id()}, .sampling = {}, .tenant = {}};
  request.sampling.max_tokens = 1;
  request.sampling.cache_mode = CacheMode::kOff;
  std::vector<Request> one;
  one.push_back(std::move(request));
  engine.generate(std::move(one), {});
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServeOptions& options, AccessLog log)
      : loop_(options.num_workers), service_(loop_, options, std::move(log)) {}

  ~ServerImpl() override {
    if (loader_.joinable()) loader_.join();
    service_.generations.cancel_all({.status = 503, .message = "the service has ended"});
    service_.generations.spans().on_add = nullptr;
    service_.set_server(nullptr);
    http_.reset();
    admin_http_.reset();
  }

  Result<void> bind() {
    DI_TRY_VOID(service_.load_keys());
    DI_TRY_VOID(service_.load_data());
    add_endpoints(service_);
    net::HttpServerOptions http{
        .addresses = service_.options.addresses,
        .tls = service_.options.tls,
        .limits = service_.options.http,
        .handler = [this](auto exchange) { service_.dispatch(std::move(exchange)); },
        .refuse = [this](int status, const std::string& m) { return service_.refuse(status, m); }};
    DI_TRY(http_, net::HttpServer::create(loop_, http));
    service_.set_server(http_.get());
    service_.control = {.drain = [this] { begin_drain(); }, .reload = [this] { return reload(); }};
    if (!service_.options.otlp_url.empty()) {
      DI_TRY(otlp_, OtlpExporter::create(loop_, service_.options.otlp_url));
      service_.generations.spans().on_add = [this](const RequestSpan& span) { otlp_->add(span); };
    }
    if (service_.options.admin_addresses.empty()) return {};
    http.addresses = service_.options.admin_addresses;
    http.handler = [this](auto exchange) { service_.dispatch_admin(std::move(exchange)); };
    DI_TRY(admin_http_, net::HttpServer::create(loop_, std::move(http)));
    return {};
  }

  std::vector<std::string> urls() const override { return http_->urls(); }
  std::vector<std::string> admin_urls() const override {
    return admin_http_ ? admin_http_->urls() : std::vector<std::string>();
  }

  Result<void> run(std::function<Result<LoadedModel>()> load) override {
    std::signal(SIGPIPE, SIG_IGN);  // whoever reads the log may go away
    loop_.on_signals({SIGTERM, SIGINT, SIGHUP}, [this](int number) { on_signal(number); });
    loader_ = std::thread([this, load = std::move(load)] {
      // Shared by this thread and the loop, one after the other.
      auto loaded = std::make_shared<Result<LoadedModel>>(load());
      if (*loaded) warm_up(*(*loaded)->engine);
      loop_.post([this, loaded] { on_loaded(std::move(*loaded)); });
    });
    loop_.run();
    loader_.join();
    if (failure_) return tl::unexpected(*failure_);
    return {};
  }

  void stop() override {
    loop_.post([this] { begin_drain(); });
  }

 private:
  void on_loaded(Result<LoadedModel> loaded) {
    if (!loaded) {
      failure_ = loaded.error();
      return loop_.stop();
    }
    loaded_ = std::move(*loaded);
    const ServeOptions& o = service_.options;
    Model model{.engine = loaded_->engine.get(),
                .tokenizer = loaded_->tokenizer,
                .name = o.served_model_name.empty() ? loaded_->name : o.served_model_name,
                .created_s = unix_seconds(),
                .max_model_len = loaded_->engine->max_model_len(),
                .namespace_digest = loaded_->namespace_digest,
                .vocab_size = loaded_->vocab_size,
                .end_think_id = loaded_->tokenizer->added_id("</think>"),
                .chat = {.tool_results_keep_reasoning = o.keeps_tool_reasoning},
                .uses_official_sampling = o.uses_official_sampling,
                .trusts_prompts = o.trusts_prompts};
    if (!loaded_->image_token.empty()) model.chat.image_token = loaded_->image_token;
    if (loaded_->max_running > 0) service_.admission.set_max_running(loaded_->max_running);
    service_.set_model(std::move(model));
    spdlog::info("ready");
  }

  void on_signal(int number) {
    if (number == SIGHUP) {
      if (auto done = reload(); !done) spdlog::error("keys and certificate are as before: {}", done.error().message);
      return;
    }
    if (service_.is_draining()) std::_Exit(kSignalExit + number);
    begin_drain();
  }

  void begin_drain() {
    if (service_.is_draining()) return;
    spdlog::info("draining: {} requests are running, at most {} s", service_.generations.num_active(),
                 service_.options.drain_time.count());
    service_.drain(service_.options.drain_time, [this] { loop_.stop(); });
  }

  // What cannot be read leaves the old one in force; the other is read in any case.
  Result<void> reload() {
    auto keys = service_.load_keys();
    DI_TRY_VOID(http_->reload_tls());
    if (admin_http_) DI_TRY_VOID(admin_http_->reload_tls());
    if (keys) spdlog::info("keys and certificate were read anew");
    return keys;
  }

  net::Loop loop_;
  Service service_;
  std::unique_ptr<OtlpExporter> otlp_;
  std::unique_ptr<net::HttpServer> http_, admin_http_;
  std::thread loader_;
  std::optional<LoadedModel> loaded_;  // destroyed before the service, which its events go to
  std::optional<Error> failure_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::create(const ServeOptions& options) {
  DI_TRY(AccessLog log, AccessLog::open(options.access_log, options.logs_prompts));
  auto server = std::make_unique<ServerImpl>(options, std::move(log));
  DI_TRY_VOID(server->bind());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace deepinfer::serve
