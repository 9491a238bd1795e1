#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <fmt/format.h>

namespace deepinfer::serve {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
const Buckets kBetween = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5};
const Buckets kWhole = {0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600};
const Buckets kTokens = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

std::string name_of(std::string_view name) {
  return fmt::format("deepinfer_{}", name);
}

// To a sum that the engine keeps.
void advance(prometheus::Counter& counter, int64_t sum) {
  counter.Increment(static_cast<double>(sum) - counter.Value());
}

}  // namespace

struct Metrics::Families {
  explicit Families(std::string_view version) {
    BuildGauge()
        .Name(name_of("build_info"))
        .Help("Version of the program.")
        .Register(registry)
        .Add({{"version", std::string(version)}})
        .Set(1);
  }
  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return BuildHistogram().Name(name_of(name)).Help(help).Register(registry).Add({}, buckets);
  }
  prometheus::Family<prometheus::Counter>& counters(const char* name, const char* help) {
    return BuildCounter().Name(name_of(name)).Help(help).Register(registry);
  }
  prometheus::Counter& counter(const char* name, const char* help) { return counters(name, help).Add({}); }
  prometheus::Gauge& gauge(const char* name, const char* help) {
    return BuildGauge().Name(name_of(name)).Help(help).Register(registry).Add({});
  }

  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& http = counters("http_requests_total", "Answered HTTP requests.");
  prometheus::Histogram& http_seconds =
      histogram("http_request_duration_seconds", "From the last byte of a request to the last of its answer.", kWhole);
  prometheus::Family<prometheus::Counter>& rejected =
      counters("requests_rejected_total", "Requests that were not let in.");
  prometheus::Family<prometheus::Counter>& cancelled =
      counters("requests_cancelled_total", "Requests that were ended.");
  prometheus::Family<prometheus::Counter>& requests = counters("requests_total", "Choices by finish reason.");
  prometheus::Histogram& first =
      histogram("time_to_first_token_seconds", "From admission to the first token.", kFirstToken);
  prometheus::Histogram& between =
      histogram("inter_token_latency_seconds", "Between two tokens of a choice.", kBetween);
  prometheus::Histogram& per_token =
      histogram("time_per_output_token_seconds", "Mean over the tokens after the first of a request.", kBetween);
  prometheus::Histogram& whole = histogram("e2e_request_latency_seconds", "From admission to the end.", kWhole);
  prometheus::Histogram& decode = histogram("decode_time_seconds", "From the first token to the end.", kWhole);
  prometheus::Family<prometheus::Histogram>& queue =
      BuildHistogram()
          .Name(name_of("queue_time_seconds"))
          .Help("Before a prompt runs: until its grammar is compiled, then until a step takes it in.")
          .Register(registry);
  prometheus::Histogram& grammar_queue = queue.Add({{"stage", "grammar"}}, kFirstToken);
  prometheus::Histogram& step_queue = queue.Add({{"stage", "schedule"}}, kFirstToken);
  prometheus::Histogram& prefill =
      histogram("prefill_time_seconds", "From a prompt's first step to its first token.", kFirstToken);
  prometheus::Histogram& prompt_tokens = histogram("prompt_tokens", "Tokens of a prompt.", kTokens);
  prometheus::Histogram& generation_tokens = histogram("generation_tokens", "Tokens of an answer.", kTokens);
  prometheus::Counter& prefix_queries = counter("prefix_queries_total", "Prompts of answered requests.");
  prometheus::Family<prometheus::Counter>& prefix_hits = counters(
      "prefix_hits_total", "Those of which a part was in the cache, by how the windows before the rest were regained.");
  prometheus::Counter& replayed_hits = prefix_hits.Add({{"windows", "replayed"}});
  prometheus::Counter& stored_hits = prefix_hits.Add({{"windows", "stored"}});
  prometheus::Family<prometheus::Counter>& miss_cause =
      counters("miss_cause_total", "Prompts by why the cache had no more of them.");
  prometheus::Family<prometheus::Counter>& by_source =
      counters("prompt_tokens_by_source_total", "Where the keys of prompt tokens came from.");
  prometheus::Counter& computed = by_source.Add({{"source", "computed"}});
  prometheus::Counter& device = by_source.Add({{"source", "device"}});
  prometheus::Counter& replayed = by_source.Add({{"source", "replayed"}});

  prometheus::Gauge& running = gauge("requests_running", "Sequences in the step loop.");
  prometheus::Gauge& waiting = gauge("requests_waiting", "Sequences that wait for a place.");
  prometheus::Gauge& in = gauge("requests_admitted", "Requests that were let in and are not answered yet.");
  prometheus::Gauge& connections = gauge("connections", "Open connections.");
  prometheus::Gauge& ready = gauge("ready", "1: requests are accepted.");
  prometheus::Gauge& queue_work = gauge("queue_work_seconds", "Estimated time to finish all that was let in.");
  prometheus::Gauge& wait = gauge("predicted_wait_seconds", "Estimated wait of a short prompt for its first token.");
  prometheus::Gauge& rung =
      gauge("overload_rung", "Given up under load: 1 drafts in crowded steps, 2 batches too, 3 requests are refused.");
  prometheus::Gauge& blocks = gauge("blocks", "Cache blocks.");
  prometheus::Gauge& blocks_free = gauge("blocks_available", "Cache blocks that could be given out.");
  prometheus::Family<prometheus::Gauge>& slots =
      BuildGauge().Name(name_of("state_slots")).Help("Private states of sequences.").Register(registry);
  prometheus::Family<prometheus::Counter>& evictions =
      counters("evictions_total", "Cached blocks that made room for others.");
  prometheus::Counter& evicted_blocks = evictions.Add({{"tier", "device"}, {"reason", "capacity"}});
  prometheus::Counter& evicted_windows =
      counter("window_evictions_total", "Stored windows that made room for others, or went with their block.");
  prometheus::Counter& undrafted_steps =
      counter("speculation_disabled_steps_total", "Steps in which sequences decoded and none verified a draft.");
  prometheus::Family<prometheus::Gauge>& confidence_error =
      BuildGauge()
          .Name(name_of("confidence_calibration_error"))
          .Help("Mean distance of the drafts' confidence from their chance to be accepted, lately.")
          .Register(registry);
  // Sums of the engine, as gauges since they are read off, not added to.
  prometheus::Gauge& steps = gauge("steps", "Steps of the engine so far.");
  prometheus::Gauge& rows = gauge("rows", "Rows computed so far.");
  prometheus::Gauge& preemptions = gauge("preemptions", "Sequences put back so far.");
  prometheus::Family<prometheus::Gauge>& busy =
      BuildGauge().Name(name_of("step_seconds")).Help("Time of the step loop so far, by part.").Register(registry);
  prometheus::Family<prometheus::Counter>& drafted =
      counters("draft_tokens_total", "Drafts that were verified, by position.");
  prometheus::Counter& accepted = counter("accepted_tokens_total", "Drafts that were accepted.");
  prometheus::Family<prometheus::Counter>& accepted_at =
      counters("accepted_at_position_total", "Drafts that were accepted, by position.");
};

Metrics::Metrics(std::string_view version) : families_(std::make_unique<Families>(version)) {}
Metrics::~Metrics() = default;

void Metrics::http_request(std::string_view route, int status, double seconds) {
  families_->http.Add({{"route", std::string(route)}, {"status", std::to_string(status)}}).Increment();
  families_->http_seconds.Observe(seconds);
}
void Metrics::rejected(std::string_view reason) {
  families_->rejected.Add({{"reason", std::string(reason)}}).Increment();
}
void Metrics::cancelled(std::string_view state) {
  families_->cancelled.Add({{"state", std::string(state)}}).Increment();
}
void Metrics::finished(std::string_view reason) {
  families_->requests.Add({{"finish", std::string(reason)}}).Increment();
}

void Metrics::prompt(const Usage& u) {
  Families& f = *families_;
  f.prompt_tokens.Observe(static_cast<double>(u.prompt_tokens));
  f.prefix_queries.Increment();
  if (u.cached_tokens > 0) (u.from_stored_windows ? f.stored_hits : f.replayed_hits).Increment();
  if (u.miss_cause != MissCause::kNone) f.miss_cause.Add({{"cause", miss_cause_name(u.miss_cause)}}).Increment();
  f.computed.Increment(static_cast<double>(u.prompt_tokens - u.cached_tokens));
  f.device.Increment(static_cast<double>(u.cached_tokens));
  f.replayed.Increment(static_cast<double>(u.replayed_tokens));
  if (u.grammar_s) f.grammar_queue.Observe(*u.grammar_s);
  if (u.queue_s) f.step_queue.Observe(*u.queue_s);
  if (u.prefill_s) f.prefill.Observe(*u.prefill_s);
}
void Metrics::generated(int64_t tokens) {
  families_->generation_tokens.Observe(static_cast<double>(tokens));
}
void Metrics::first_token(double seconds) {
  families_->first.Observe(seconds);
}
void Metrics::between_tokens(double seconds) {
  families_->between.Observe(seconds);
}
void Metrics::end_to_end(double seconds, int64_t generated, double first_token_s) {
  families_->whole.Observe(seconds);
  families_->decode.Observe(seconds - first_token_s);
  if (generated > 1) families_->per_token.Observe((seconds - first_token_s) / static_cast<double>(generated - 1));
}

std::string Metrics::text(const Gauges& now) {
  Families& f = *families_;
  const EngineStats& e = now.engine;
  f.running.Set(static_cast<double>(e.num_running));
  f.waiting.Set(static_cast<double>(e.num_waiting));
  f.in.Set(now.requests);
  f.connections.Set(now.connections);
  f.ready.Set(now.is_ready);
  f.rung.Set(static_cast<int>(now.rung));
  f.queue_work.Set(now.queue_work_s);
  f.wait.Set(now.predicted_wait_s);
  f.blocks.Set(static_cast<double>(e.blocks));
  f.blocks_free.Set(static_cast<double>(e.blocks_available));
  f.slots.Add({{"state", "used"}}).Set(e.state_slots_used);
  f.slots.Add({{"state", "free"}}).Set(e.state_slots - e.state_slots_used);
  advance(f.evicted_blocks, e.evicted_blocks);
  advance(f.evicted_windows, e.evicted_windows);
  advance(f.undrafted_steps, e.undrafted_steps);
  advance(f.accepted, e.accepted_tokens);
  if (!e.drafted_by_position.empty()) f.confidence_error.Add({}).Set(e.confidence_error);
  f.steps.Set(static_cast<double>(e.steps));
  f.rows.Set(static_cast<double>(e.rows));
  f.preemptions.Set(static_cast<double>(e.preemptions));
  for (auto [part, ms] :
       {std::pair{"forward", e.forward_ms}, std::pair{"sampling", e.sampling_ms}, std::pair{"draft", e.draft_ms},
        std::pair{"planning", e.planning_ms}, std::pair{"idle", e.idle_ms}}) {
    f.busy.Add({{"part", part}}).Set(ms / 1000);
  }
  for (std::size_t i = 0; i < e.drafted_by_position.size(); ++i) {
    std::string position = std::to_string(i + 1);
    advance(f.drafted.Add({{"position", position}}), e.drafted_by_position[i]);
    advance(f.accepted_at.Add({{"position", position}}), e.accepted_by_position[i]);
  }
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

}  // namespace deepinfer::serve
