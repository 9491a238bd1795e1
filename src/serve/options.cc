#include "serve/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace deepinfer::serve {

std::string ServeOptions::description() const {
  std::string text;
  auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("{:<10} {}\n", name, value); };
  line("keys", keys_file.empty() ? "none, everybody may use the service" : keys_file);
  line("tls", tls.certificate.empty() ? "off" : tls.certificate);
  line("cors", cors_origins.empty() ? "off" : fmt::format("{}", fmt::join(cors_origins, ", ")));
  line("access log", access_log + (logs_prompts ? ", with prompts" : ", without prompts"));
  line("admin",
       admin_addresses.empty() ? "off" : fmt::format("{}:{}", admin_addresses[0].host, admin_addresses[0].port));
  line("traces", otlp_url.empty() ? "off" : otlp_url);
  line("limits", fmt::format("body {} bytes, headers {} bytes, {} connections, {} requests, wait {} s, drain {} s",
                             http.max_body_bytes, http.max_header_bytes, http.max_connections, max_requests, max_wait_s,
                             drain_time.count()));
  line("data", data_dir.empty()
                   ? "in memory: files, batches and stored answers are lost when the process ends"
                   : data_dir + ": files and batches; stored answers are in memory and lost when the process ends");
  line("sampling", uses_official_sampling ? "official rules" : "as requested");
  return text;
}

}  // namespace deepinfer::serve
