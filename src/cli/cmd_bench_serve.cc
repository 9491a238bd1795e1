// deepinfer bench serve: load for a running server of the OpenAI API (src/serve/load).

#include <charconv>
#include <cstdio>
#include <memory>

#include "base/file.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "serve/load/load.h"

namespace deepinfer {
namespace {

struct LoadFlags {
  serve::LoadOptions load;
  std::string rate = "inf", token_ids = "100:999", json_file;
  std::vector<std::string> goodput;
  double timeout_s = 600;
};

template <typename N>
bool parse_whole(std::string_view text, N& out) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && end == text.data() + text.size();
}

Result<serve::LoadOptions> options_of(const LoadFlags& f) {
  serve::LoadOptions o = f.load;
  if (f.rate != "inf" && !(parse_whole(f.rate, o.request_rate) && o.request_rate > 0))
    return fail(Code::kInvalid, "--request-rate is '{}'; allowed: requests a second above 0, or inf", f.rate);
  std::size_t colon = f.token_ids.find(':');
  std::string_view ids = f.token_ids;
  bool has_ids = colon != ids.npos && parse_whole(ids.substr(0, colon), o.least_token) &&
                 parse_whole(ids.substr(colon + 1), o.most_token) && o.least_token >= 0;
  if (!has_ids) return fail(Code::kInvalid, "--token-ids is '{}'; allowed: LEAST:MOST", f.token_ids);
  for (std::string_view limit : f.goodput) {
    std::size_t at = limit.find(':');
    double ms = 0;
    if (at == limit.npos || !parse_whole(limit.substr(at + 1), ms))
      return fail(Code::kInvalid, "--goodput is '{}'; allowed: NAME:MILLISECONDS", limit);
    o.goodput_ms[std::string(limit.substr(0, at))] = ms;
  }
  o.timeout = std::chrono::milliseconds(static_cast<int64_t>(f.timeout_s * 1000));
  return o;
}

Result<void> bench_serve(const LoadFlags& flags) {
  DI_TRY(serve::LoadOptions options, options_of(flags));
  DI_TRY(serve::LoadResult result, serve::run_load(options));
  if (flags.json_file == "-") {
    std::printf("%s\n", result.json.c_str());
    return {};
  }
  std::fputs(result.table.c_str(), stdout);
  if (!flags.json_file.empty()) DI_TRY_VOID(write_file(flags.json_file, result.json + "\n"));
  return {};
}

void add_target_options(Command& command, LoadFlags& f) {
  serve::LoadOptions& o = f.load;
  command.option("--url", o.url, "the server, http://HOST:PORT or https://HOST:PORT").show_default();
  command.option("--endpoint", o.endpoint, "prompts are token ids, for chats words")
      .one_of({"/v1/completions", "/v1/chat/completions"})
      .show_default();
  command.option("--model", o.model, "default: the first that the server lists");
  command.option("--api-key", o.api_key);
  command.option("--tls-ca", o.trusted, "PEM file of certificates that are trusted beside the system's");
  command.option("--extra-body", o.extra_body, "JSON object whose members go into each request");
  command.option("--timeout", f.timeout_s, "seconds a request may take").positive().show_default();
}

void add_arrival_options(Command& command, LoadFlags& f) {
  serve::LoadOptions& o = f.load;
  command.option("--num-prompts", o.num_prompts, "requests; of a trace: at most").in_range(1, 1 << 24).show_default();
  command.option("--request-rate", f.rate, "requests a second, or inf: all at once").show_default();
  command.option("--burstiness", o.burstiness, "1: Poisson; below 1 in bursts, above 1 more evenly")
      .positive()
      .show_default();
  command.option("--max-concurrency", o.max_concurrency, "requests that run together; 0: no limit")
      .in_range(0, 1 << 20)
      .show_default();
  command.option("--trace", o.trace_file,
                 "JSON lines of timestamp (ms), input_length, output_length and hash_ids, instead of rate and lengths");
  command.option("--trace-speed", o.trace_speed, "2: twice as fast").positive().show_default();
  command.option("--trace-block", o.trace_block, "tokens that a hash id stands for")
      .in_range(1, 1 << 20)
      .show_default();
  command.option("--seed", o.seed, "of times, lengths and prompts").show_default();
}

void add_length_options(Command& command, LoadFlags& f) {
  serve::LoadOptions& o = f.load;
  const std::string forms = "N, uniform:LEAST:MOST, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA";
  command.option("--input-len", o.input_len, "tokens of a prompt behind its prefix: " + forms).show_default();
  command.option("--output-len", o.output_len, "tokens of an answer").show_default();
  command.option("--prefix-len", o.prefix_len, "tokens that prompts have in common").show_default();
  command.option("--num-prefixes", o.num_prefixes, "different prefixes").in_range(1, 1 << 20).show_default();
  command.option("--prefix-skew", o.prefix_skew, "exponent of the prefixes' popularity by rank; 0: all alike")
      .non_negative()
      .show_default();
  command.option("--token-ids", f.token_ids, "LEAST:MOST, the ids that prompts are made of").show_default();
}

}  // namespace

void add_bench_serve(Command& bench, int& exit_code) {
  auto flags = std::make_shared<LoadFlags>();  // owned by the callback, which outlives this function
  Command command = bench.subcommand("serve", "load for a running server of the OpenAI API, and its latencies");
  add_target_options(command, *flags);
  add_arrival_options(command, *flags);
  add_length_options(command, *flags);
  command
      .option("--goodput", flags->goodput, "limit of a good request, ttft|tpot|itl|e2el:MILLISECONDS; may be repeated")
      .one_value_each();
  command.option("--json", flags->json_file,
                 "write the result, with the names of vLLM's bench serve; -: print it instead");
  command.flag("--detailed", flags->load.is_detailed, "list every request in the result");
  command.callback([flags, &exit_code] {
    if (auto done = bench_serve(*flags); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
