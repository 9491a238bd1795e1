// deepinfer bench: throughput of the engine on this machine, offline (bench serve: cmd_bench_serve.cc).
//
//   All requests are given at once and run at most --concurrency together; prompts are random ids or, for a trained
//   model, a text, each from another of its tokens on. Prefill speed is prompt tokens over the time to the last first
//   token when outputs are one token long; decode speed is output tokens over the rest.

#include <chrono>
#include <cstdio>
#include <random>

#include "base/json.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/engine_options.h"

namespace deepinfer {
namespace {

struct BenchOptions {
  EngineFlags engine;
  int prompts = 4, prompt_tokens = 512, output_tokens = 128, concurrency = 1, repeats = 3;
  uint64_t seed = 1;
  double temperature = 0;
  std::string text, acceptance_file;
  bool prints_json = false;
};

// {"mean_tokens": of a round with every draft verified, "spread": of the logits, "seed"}; the last two may be absent.
Result<engine::DraftQuality> read_acceptance(const std::string& path) {
  DI_TRY(json::value file, json::parse_file(path));
  if (!file.is_object()) return fail(Code::kInvalid, "{}: not an object", path);
  engine::DraftQuality quality;
  for (const auto& [name, value] : file.get_object()) {
    if (!value.is_number()) return fail(Code::kInvalid, "{}: {} is not a number", path, std::string_view(name));
    const auto number = value.to_number<double>();
    if (name == "mean_tokens" && number > 1.0) {
      quality.mean_tokens = number;
    } else if (name == "spread" && number >= 0.0) {
      quality.spread = number;
    } else if (name == "seed" && number >= 0.0) {
      quality.seed = static_cast<uint64_t>(number);
    } else {
      return fail(Code::kInvalid, "{}: {} = {}; allowed: mean_tokens above 1, spread and seed from 0 on", path,
                  std::string_view(name), number);
    }
  }
  if (quality.mean_tokens == 0.0) return fail(Code::kInvalid, "{}: mean_tokens is missing", path);
  return quality;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Request> make_requests(const BenchOptions& o, const engine::EngineImpl& engine, std::mt19937_64& rng,
                                   int output_tokens) {
  std::vector<Request> requests;
  std::vector<int32_t> text;
  if (!o.text.empty()) text = engine.encode(o.text);
  for (int i = 0; i < o.prompts; ++i) {
    Request r;
    for (int t = 0; t < o.prompt_tokens; ++t) {
      r.prompt.push_back(text.empty()
                             ? static_cast<int32_t>(3 + rng() % static_cast<uint64_t>(engine.config().vocab_size - 3))
                             : text[static_cast<size_t>(i + t) % text.size()]);
    }
    r.sampling.temperature = o.temperature;
    r.sampling.max_tokens = output_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.cache_mode = CacheMode::kOff;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Figures {
  double prefill_tokens_s = 0, decode_tokens_s = 0, accepted = 0, gap_share = 0;
  double tokens_step = 0, rows_step = 0;                                               // means a step
  double forward_us = 0, sampling_us = 0, draft_us = 0, planning_us = 0, idle_us = 0;  // the same
};

Result<Figures> measure(const BenchOptions& o, engine::EngineImpl& engine, std::mt19937_64& rng) {
  Figures f;
  double begin = seconds();
  auto first = engine.generate(make_requests(o, engine, rng, 1), {});
  double prefill_s = seconds() - begin;
  f.prefill_tokens_s = static_cast<double>(o.prompts) * o.prompt_tokens / prefill_s;

  EngineStats before = engine.stats();
  begin = seconds();
  auto outputs = engine.generate(make_requests(o, engine, rng, o.output_tokens), {});
  double total_s = seconds() - begin;
  EngineStats after = engine.stats();
  for (const auto* list : {&first, &outputs}) {
    for (const RequestOutput& r : *list) {
      if (!r.outputs[0].error.empty()) return fail(Code::kInternal, "{}", r.outputs[0].error);
    }
  }
  double decode_s = std::max(1e-9, total_s - prefill_s);
  f.decode_tokens_s = static_cast<double>(o.prompts) * (o.output_tokens - 1) / decode_s;
  auto drafted = static_cast<double>(after.drafted_tokens - before.drafted_tokens);
  f.accepted = drafted > 0 ? static_cast<double>(after.accepted_tokens - before.accepted_tokens) / drafted : 0;
  auto steps = static_cast<double>(std::max<int64_t>(1, after.steps - before.steps));
  auto a_step = [&](double EngineStats::* ms) { return 1000 * (after.*ms - before.*ms) / steps; };
  f.forward_us = a_step(&EngineStats::forward_ms);
  f.sampling_us = a_step(&EngineStats::sampling_ms);
  f.draft_us = a_step(&EngineStats::draft_ms);
  f.planning_us = a_step(&EngineStats::planning_ms);
  f.idle_us = a_step(&EngineStats::idle_ms);
  f.tokens_step = static_cast<double>(after.output_tokens - before.output_tokens) / steps;
  f.rows_step = static_cast<double>(after.rows - before.rows) / steps;
  f.gap_share = f.idle_us / std::max(1e-9, f.forward_us + f.sampling_us + f.draft_us);
  return f;
}

Result<void> bench(BenchOptions& o) {
  if (o.prints_json) o.engine.is_quiet = true;
  if (o.engine.options.max_num_seqs == 0) o.engine.options.max_num_seqs = o.concurrency;
  if (!o.acceptance_file.empty()) {
    DI_TRY(o.engine.draft_quality, read_acceptance(o.acceptance_file));
  }
  DI_TRY(auto engine, o.engine.make());
  std::mt19937_64 rng(o.seed);
  std::vector<Figures> runs;
  for (int i = 0; i < o.repeats; ++i) {
    DI_TRY(Figures f, measure(o, *engine, rng));
    runs.push_back(f);
  }
  auto median = [&](double Figures::* field) {
    std::vector<double> values;
    for (const Figures& f : runs) values.push_back(f.*field);
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  double prefill = median(&Figures::prefill_tokens_s), decode = median(&Figures::decode_tokens_s);
  double accepted = median(&Figures::accepted), gap = median(&Figures::gap_share);
  if (o.prints_json) {
    std::printf("%s\n", json::dump(json::object{{"prefill_tokens_s", prefill},
                                                {"decode_tokens_s", decode},
                                                {"draft_acceptance", accepted},
                                                {"idle_share", gap},
                                                {"tokens_step", median(&Figures::tokens_step)},
                                                {"rows_step", median(&Figures::rows_step)},
                                                {"forward_us", median(&Figures::forward_us)},
                                                {"sampling_us", median(&Figures::sampling_us)},
                                                {"draft_us", median(&Figures::draft_us)},
                                                {"planning_us", median(&Figures::planning_us)},
                                                {"idle_us", median(&Figures::idle_us)},
                                                {"prompts", o.prompts},
                                                {"prompt_tokens", o.prompt_tokens},
                                                {"output_tokens", o.output_tokens},
                                                {"concurrency", o.concurrency},
                                                {"repeats", o.repeats}})
                            .c_str());
    return {};
  }
  std::printf(
      "prefill %.1f tokens/s, decode %.1f tokens/s, drafts accepted %.0f %%, idle between steps %.1f %% (median of "
      "%d)\n",
      prefill, decode, 100 * accepted, 100 * gap, o.repeats);
  return {};
}

}  // namespace

void add_bench(Command& app, int& exit_code) {
  auto o = std::make_shared<BenchOptions>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("bench", "measure prefill and decode speed; bench serve: load for a running server");
  add_bench_serve(command, exit_code);
  o->engine.add_to(command);
  command.option("--prompts", o->prompts).show_default().in_range(1, 100000);
  command.option("--prompt-tokens", o->prompt_tokens).show_default().in_range(1, 1 << 20);
  command.option("--output-tokens", o->output_tokens).show_default().in_range(2, 1 << 20);
  command.option("--concurrency", o->concurrency, "sequences that run together").show_default().in_range(1, 4096);
  command.option("--repeats", o->repeats).show_default().in_range(1, 1000);
  command.option("--seed", o->seed, "of the random prompts").show_default();
  command.option("--temperature", o->temperature).show_default();
  command.option("--text", o->text, "prompts repeat this text instead of random ids");
  command.option("--acceptance", o->acceptance_file,
                 "JSON with mean_tokens, spread, seed: drafts are accepted by simulation, whatever the model says");
  command.flag("--json", o->prints_json);
  command.callback([o, &exit_code] {
    if (auto done = bench(*o); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
