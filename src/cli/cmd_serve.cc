// deepinfer serve: the HTTP service (src/serve).

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/result.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "serve/server.h"

namespace deepinfer {
namespace {

struct ServeFlags {
  EngineFlags engine;
  serve::ServeOptions serve;
  std::string host = "127.0.0.1", unix_path, admin_host = "127.0.0.1", sampling = "requested";
  int port = 8000, admin_port = -1;
  int64_t max_body_mb = 32, header_s = 10, body_s = 120, idle_s = 75, write_s = 30, drain_s = 60, stored_s = 3600;
  int64_t files_s = 7 * 86400, files_mb = 256;
  int64_t max_buffered_kb = 1024, max_total_mb = 1024;
};

serve::ServeOptions options_of(const ServeFlags& f) {
  serve::ServeOptions o = f.serve;
  if (!f.unix_path.empty()) o.addresses.push_back({.unix_path = f.unix_path});
  if (f.unix_path.empty() || f.port >= 0) o.addresses.push_back({.host = f.host, .port = std::max(0, f.port)});
  if (f.admin_port >= 0) o.admin_addresses.push_back({.host = f.admin_host, .port = f.admin_port});
  o.http.max_body_bytes = f.max_body_mb << 20;
  o.http.max_total_body_bytes = f.max_total_mb << 20;
  o.http.max_buffered_bytes = f.max_buffered_kb << 10;
  o.http.header_timeout = std::chrono::seconds(f.header_s);
  o.http.body_timeout = std::chrono::seconds(f.body_s);
  o.http.idle_timeout = std::chrono::seconds(f.idle_s);
  o.http.write_timeout = std::chrono::seconds(f.write_s);
  o.drain_time = std::chrono::seconds(f.drain_s);
  o.stored_time = std::chrono::seconds(f.stored_s);
  o.files_time = std::chrono::seconds(f.files_s);
  o.files_bytes = f.files_mb << 20;
  o.uses_official_sampling = f.sampling == "official";
  return o;
}

Result<serve::LoadedModel> load(ServeFlags& flags) {
  DI_TRY(std::unique_ptr<engine::EngineImpl> engine, flags.engine.make());
  serve::LoadedModel loaded{.engine = nullptr,
                            .tokenizer = &engine->tokenizer(),
                            .name = std::filesystem::path(flags.engine.options.model).filename().string(),
                            .vocab_size = engine->config().vocab_size,
                            .max_running = engine->stats().max_sequences,
                            .image_token = "",
                            .namespace_digest = engine->namespace_digest()};
  if (int32_t id = engine->config().image_token_id; engine->tokenizer().is_added(id)) {
    loaded.image_token = engine->tokenizer().token_bytes(id);
  }
  loaded.engine = std::move(engine);
  return loaded;
}

Result<void> serve_model(ServeFlags& flags) {
  serve::ServeOptions options = options_of(flags);
  DI_TRY(std::unique_ptr<serve::Server> server, serve::Server::create(options));
  if (!flags.engine.is_quiet) std::fputs(options.description().c_str(), stderr);
  for (const std::string& url : server->urls()) std::fprintf(stderr, "listening  %s\n", url.c_str());
  for (const std::string& url : server->admin_urls()) std::fprintf(stderr, "admin      %s\n", url.c_str());
  return server->run([&flags] { return load(flags); });
}

void add_service_options(Command& command, ServeFlags& f) {
  serve::ServeOptions& o = f.serve;
  command.option("--host", f.host, "address to listen on").show_default();
  command.option("--port", f.port, "port to listen on; 0: any free one; -1: none, with --unix")
      .in_range(-1, 65535)
      .show_default();
  command.option("--unix", f.unix_path, "unix socket to listen on as well");
  command
      .option("--admin-port", f.admin_port, "port for operators: load, drain, reload, log level, step trace; -1: none")
      .in_range(-1, 65535)
      .show_default();
  command.option("--admin-host", f.admin_host, "address of the admin port").show_default();
  command.option("--tls-cert", o.tls.certificate, "certificate chain, PEM");
  command.option("--tls-key", o.tls.key, "key of the certificate, PEM");
  command.option("--served-model-name", o.served_model_name, "name in the API; default: the model's directory");
  command.option("--keys", o.keys_file, "file of API keys: lines of NAME KEY [rpm=N] [tpm=N] [priority=N] [admin]");
  command.option("--cors-origin", o.cors_origins, "origin that browsers may call from, or *; may be repeated")
      .one_value_each();
  command.option("--access-log", o.access_log, "file, - for stderr, or off").show_default();
  command.flag("--log-prompts", o.logs_prompts, "write request bodies into the access log");
  command.option("--data-dir", o.data_dir,
                 "folder in which files and batches outlive the process; default: they are in memory");
  command.option("--otlp", o.otlp_url, "collector that gets traces over HTTP, http://HOST:4318 or https://");
  command
      .option("--sampling", f.sampling, "requested, or official: the hosted service's rules for temperature and top_p")
      .one_of({"requested", "official"})
      .show_default();
  command.flag("--keep-tool-reasoning", o.keeps_tool_reasoning,
               "keep reasoning since the last user message even if no tools are declared");
  command.flag("--trust-prompts", o.trusts_prompts, "read control tokens in the text of /v1/completions");
}

void add_limit_options(Command& command, ServeFlags& f) {
  serve::ServeOptions& o = f.serve;
  command.option("--max-body-mb", f.max_body_mb, "largest request body").in_range(1, 4096).show_default();
  command.option("--max-total-body-mb", f.max_total_mb, "bodies of all requests that are being read or answered")
      .in_range(1, 1 << 20)
      .show_default();
  command.option("--max-connections", o.http.max_connections, "open connections").in_range(1, 1 << 20).show_default();
  command.option("--max-requests", o.max_requests, "requests that run or wait").in_range(1, 1 << 20).show_default();
  command.option("--max-wait", o.max_wait_s, "predicted seconds to the first token beyond which requests are refused")
      .positive()
      .show_default();
  command.option("--max-buffered-kb", f.max_buffered_kb, "of one stream that its reader does not take")
      .in_range(16, 1 << 20)
      .show_default();
  command.option("--header-timeout", f.header_s, "seconds for a request's headers").in_range(1, 3600).show_default();
  command.option("--body-timeout", f.body_s, "seconds for a request's body").in_range(1, 86400).show_default();
  command.option("--idle-timeout", f.idle_s, "seconds between two requests of a connection")
      .in_range(1, 86400)
      .show_default();
  command.option("--write-timeout", f.write_s, "seconds without progress after which a reader is dropped")
      .in_range(1, 86400)
      .show_default();
  command.option("--drain-time", f.drain_s, "seconds that running requests get after SIGTERM")
      .in_range(0, 86400)
      .show_default();
  command.option("--stored-time", f.stored_s, "seconds that stored answers are kept")
      .in_range(1, 1 << 30)
      .show_default();
  command.option("--files-time", f.files_s, "seconds that files, and batches that have ended, are kept")
      .in_range(1, 1 << 30)
      .show_default();
  command.option("--files-mb", f.files_mb, "all files together").in_range(1, 1 << 20).show_default();
}

}  // namespace

void add_serve(Command& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("serve", "serve the model over HTTP: the OpenAI and Anthropic APIs");
  flags->engine.add_to(command);
  add_service_options(command, *flags);
  add_limit_options(command, *flags);
  command.callback([flags, &exit_code] {
    if (auto done = serve_model(*flags); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
