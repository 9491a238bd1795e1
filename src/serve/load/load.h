// A load generator for any server of the OpenAI API: requests leave at times that do not depend on the answers (open
// loop), so a server that is too slow shows it in its latencies.
//
//   LoadOptions -> plan_load: when, which prompt, how long an answer -> HttpClient -> outcomes -> report
//
// The result has the names of vLLM's `bench serve`, so that what reads those files reads these (docs/serving.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::serve {

struct LoadOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string endpoint = "/v1/completions";  // prompts are token ids; /v1/chat/completions: words
  std::string model, api_key;                // model empty: the first that the server lists
  std::string trusted;                       // PEM file of certificates that are trusted beside the system's
  std::string extra_body;                    // a JSON object whose members go into each request

  int num_prompts = 100;
  double request_rate = 0;  // a second; 0: all at once
  double burstiness = 1;    // shape of the gaps' gamma distribution; 1: Poisson
  int max_concurrency = 0;  // 0: no limit
  std::string trace_file;   // instead of rate and lengths
  double trace_speed = 1;   // 2: twice as fast
  int trace_block = 512;    // tokens that a hash id of the trace stands for

  std::string input_len = "512", output_len = "64", prefix_len = "0";  // distributions (load_plan.h)
  int num_prefixes = 1;
  double prefix_skew = 0;                   // exponent of the prefixes' Zipf popularity; 0: all alike
  int least_token = 100, most_token = 999;  // ids that prompts are made of
  uint64_t seed = 0;

  std::chrono::milliseconds timeout{600'000};
  std::map<std::string, double> goodput_ms;  // ttft, tpot, itl, e2el: limits that a good request keeps
  bool is_detailed = false;                  // the report lists every request
};

struct LoadResult {
  std::string table, json;
  int64_t num_completed = 0, num_failed = 0;
};

// Blocks until every request has ended. Fails if the options make no sense or the server cannot be reached.
Result<LoadResult> run_load(const LoadOptions& options);

}  // namespace deepinfer::serve
