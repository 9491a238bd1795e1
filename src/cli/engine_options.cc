#include "cli/engine_options.h"

#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "cli/command.h"
#include "weights/model_path.h"

namespace deepinfer {

std::string embedded_model() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<fs::path> places = {fs::current_path(ignored)};
  fs::path binary = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path p = binary.parent_path(); !p.empty() && p != p.root_path(); p = p.parent_path()) {
    places.push_back(p);
    places.push_back(p / "share" / "deepinfer");
  }
  for (const fs::path& p : places) {
    if (fs::exists(p / "models/tiny/config.json", ignored)) return (p / "models/tiny").string();
  }
  return "";
}

void EngineFlags::add_to(Command& command) {
  options.model.clear();
  command.option("--model", options.model, "checkpoint directory or hub name; default: the built-in tiny model");
  command.option("--tokenizer", options.tokenizer, "directory with tokenizer.json; default: the model's");
  command.option("--threads", options.num_threads, "threads; default: all available").in_range(1, 4096);
  command.option("--numerics", options.numerics, "fast, vendor, qat or fp32").show_default();
  command.option("--backend", options.backend, "cpu, cuda or ref; default: a GPU if there is one");
  command.option("--max-model-len", options.max_model_len, "context length; default: what memory allows").positive();
  command.option("--max-num-seqs", options.max_num_seqs, "sequences that run together").in_range(1, 4096);
  command.option("--max-num-batched-tokens", options.max_num_batched_tokens, "rows a step").in_range(1, 1 << 20);
  command.option("--drafts", options.num_drafts, "drafts a step verifies at most; 0: no speculation").in_range(0, 32);
  command.option("--truncation", truncation, "prompt rows of the decoder half: off, mask or compact")
      .one_of({"off", "mask", "compact"});
  command.option("--keep-tokens", options.keep_tokens, "prompt rows that compact keeps").positive();
  command.option("--cache-mode", cache_mode, "bounded, exact or off").one_of({"bounded", "exact", "off"});
  command.option("--max-step-ms", options.max_step_ms, "bound on a step that holds decode rows").non_negative();
  command.option("--engine-seed", options.seed, "seeds of requests without one derive from it");
  command.flag("--quiet", is_quiet, "do not print configuration and memory plan");
  command.flag("--download", downloads, "download a hub name that is not in the cache");
}

Result<std::unique_ptr<engine::EngineImpl>> EngineFlags::make() {
  DI_TRY(engine::Settings settings, engine::read_settings());
  spdlog::set_level(spdlog::level::from_str(settings.log_level));
  if (options.model.empty()) options.model = embedded_model();
  if (options.model.empty())
    return fail(Code::kNotFound, "--model is missing and models/tiny was not found beside the program");
  DI_TRY(options.model,
         downloads ? weights::resolve_or_download_model(options.model) : weights::resolve_model(options.model));
  if (!truncation.empty()) options.truncation = truncation == "off" ? 0 : truncation == "mask" ? 1 : 2;
  if (!cache_mode.empty()) options.cache_mode = cache_mode == "bounded" ? 0 : cache_mode == "exact" ? 1 : 2;
  settings.draft_quality = draft_quality;
  if (verifies_all && settings.varlen < 0) settings.varlen = 0;
  DI_TRY(auto engine, engine::EngineImpl::create(options, settings));
  if (!is_quiet) std::fputs(engine->description().c_str(), stderr);
  return engine;
}

void SamplingFlags::add_to(Command& command) {
  command.option("--max-tokens", params.max_tokens, "tokens of the answer at most").show_default();
  command.option("--temperature", params.temperature, "0: the likeliest token").show_default();
  command.option("--top-p", params.top_p).show_default();
  command.option("--top-k", params.top_k, "-1: off").show_default();
  command.option("--min-p", params.min_p).show_default();
  command.option("--seed", seed, "makes sampling repeatable");
  command.option("--repetition-penalty", params.repetition_penalty).show_default();
  command.option("--presence-penalty", params.presence_penalty).show_default();
  command.option("--frequency-penalty", params.frequency_penalty).show_default();
  command.option("--stop", params.stop, "string that ends the answer; may be repeated").one_value_each();
  command.option("-n", params.n, "answers from one prompt").show_default();
  command.flag("--ignore-eos", params.ignore_eos, "go on after the end token");
  command.flag("--logprobs", params.logprobs, "log-probabilities of the chosen tokens (with --json)");
  command.option("--top-logprobs", params.top_logprobs, "alternatives per token (with --json)").show_default();
}

SamplingParams SamplingFlags::get() const {
  SamplingParams p = params;
  p.seed = seed;
  return p;
}

}  // namespace deepinfer
