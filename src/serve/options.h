// How the service is set up: made once from the command line, printed at start, never changed.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "net/http_server.h"

namespace deepinfer::serve {

struct ServeOptions {
  std::vector<net::ListenAddress> addresses;
  std::vector<net::ListenAddress> admin_addresses;  // none: there is no admin port
  net::TlsFiles tls;
  net::HttpLimits http;
  int num_workers = 2;  // threads that read and tokenise large requests

  std::string served_model_name;  // empty: the name of the checkpoint's directory
  std::string keys_file;          // empty: everybody may use the service
  std::vector<std::string> cors_origins;
  std::string access_log = "-";  // a file, "-" for stderr, "off"
  bool logs_prompts = false;
  std::string otlp_url;  // collector of traces; empty: none

  bool uses_official_sampling = false;  // the official service's rules for temperature and top_p
  bool keeps_tool_reasoning = false;    // text::ChatOptions::tool_results_keep_reasoning
  bool trusts_prompts = false;          // control tokens in /v1/completions prompts are read as such
  double max_wait_s = 60;               // predicted wait for the first token beyond which requests are refused
  int max_requests = 2048;              // running and waiting
  std::chrono::seconds drain_time{60};
  std::chrono::seconds stored_time{3600};     // answers of /v1/responses, idempotent answers
  int64_t stored_bytes = int64_t{256} << 20;  // of each of these stores

  std::string data_dir;                        // files and batches are kept there; empty: in memory
  std::chrono::seconds files_time{7 * 86400};  // files and batches that have ended
  int64_t files_bytes = int64_t{256} << 20;    // all files together

  // One "name value" line each.
  std::string description() const;
};

}  // namespace deepinfer::serve
