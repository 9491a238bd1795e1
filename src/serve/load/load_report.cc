#include "serve/load/load_report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include <fmt/format.h>

#include "serve/json_writer.h"

namespace deepinfer::serve {
namespace {

constexpr double kPercentiles[] = {50, 95, 99};

struct Summary {
  std::string name, title;
  double mean = 0, median = 0, deviation = 0, most = 0;
  double percentiles[std::size(kPercentiles)] = {};
};

Summary summarise(std::string name, std::string title, std::vector<double> seconds) {
  Summary s{.name = std::move(name), .title = std::move(title)};
  if (seconds.empty()) return s;
  std::ranges::sort(seconds);
  for (double& v : seconds) v *= 1000;
  auto n = static_cast<double>(seconds.size());
  s.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / n;
  double squares = 0;
  for (double v : seconds) squares += (v - s.mean) * (v - s.mean);
  s.deviation = std::sqrt(squares / n);
  s.median = percentile(seconds, 50);
  s.most = seconds.back();
  for (std::size_t i = 0; i < std::size(kPercentiles); ++i) s.percentiles[i] = percentile(seconds, kPercentiles[i]);
  return s;
}

double tpot(const RequestOutcome& r) {
  return r.output_tokens > 1 ? (r.e2el_s - r.ttft_s) / static_cast<double>(r.output_tokens - 1) : 0;
}

bool keeps(const RequestOutcome& r, const std::map<std::string, double>& limits_ms) {
  double itl = r.itl_s.empty() ? 0 : *std::ranges::max_element(r.itl_s);
  for (auto [name, value] : {std::pair("ttft", r.ttft_s), {"tpot", tpot(r)}, {"itl", itl}, {"e2el", r.e2el_s}}) {
    auto limit = limits_ms.find(name);
    if (limit != limits_ms.end() && value * 1000 > limit->second) return false;
  }
  return true;
}

// The most requests that ran at one time.
int64_t most_together(std::span<const RequestOutcome> outcomes) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestOutcome& r : outcomes) {
    changes.emplace_back(r.start_s, 1);
    changes.emplace_back(r.start_s + r.e2el_s, -1);
  }
  std::ranges::sort(changes);
  int64_t now = 0, most = 0;
  for (auto [at, change] : changes) most = std::max(most, now += change);
  return most;
}

struct Figures {
  double duration_s = 0;
  int64_t completed = 0, refused = 0, failed = 0, input = 0, output = 0, good = 0, together = 0;
  std::vector<Summary> latencies;
  Summary refusals;
  std::map<std::string, int64_t> errors;  // of those that were not refused

  double per_second(int64_t count) const { return duration_s > 0 ? static_cast<double>(count) / duration_s : 0; }
};

Figures figures_of(const LoadOptions& options, double duration_s, std::span<const RequestOutcome> outcomes) {
  Figures f{.duration_s = duration_s, .together = most_together(outcomes)};
  std::vector<double> ttft, tpots, itl, e2el, refusals;
  for (const RequestOutcome& r : outcomes) {
    if (!r.error.empty()) {
      ++f.failed;
      if (r.is_refused()) {
        ++f.refused;
        refusals.push_back(r.e2el_s);
      } else {
        ++f.errors[r.error];
      }
      continue;
    }
    ++f.completed;
    f.input += r.input_tokens;
    f.output += r.output_tokens;
    f.good += keeps(r, options.goodput_ms);
    ttft.push_back(r.ttft_s);
    e2el.push_back(r.e2el_s);
    if (r.output_tokens > 1) tpots.push_back(tpot(r));
    itl.insert(itl.end(), r.itl_s.begin(), r.itl_s.end());
  }
  f.latencies = {summarise("ttft", "time to first token", std::move(ttft)),
                 summarise("tpot", "time per output token", std::move(tpots)),
                 summarise("itl", "between tokens", std::move(itl)), summarise("e2el", "end to end", std::move(e2el))};
  f.refusals = summarise("refusal", "refusals", std::move(refusals));
  return f;
}

// ---- written ----------------------------------------------------------------------------------------------------

void write_summary(JsonWriter& w, const Summary& s) {
  w.field(fmt::format("mean_{}_ms", s.name), s.mean).field(fmt::format("median_{}_ms", s.name), s.median);
  w.field(fmt::format("std_{}_ms", s.name), s.deviation);
  for (std::size_t i = 0; i < std::size(kPercentiles); ++i)
    w.field(fmt::format("p{:.0f}_{}_ms", kPercentiles[i], s.name), s.percentiles[i]);
}

template <typename F>
void write_list(JsonWriter& w, std::string_view name, std::span<const RequestOutcome> outcomes, F value) {
  w.key(name).begin_array();
  for (const RequestOutcome& r : outcomes) w.value(value(r));
  w.end_array();
}

void write_requests(JsonWriter& w, std::span<const RequestOutcome> outcomes) {
  write_list(w, "input_lens", outcomes, [](const auto& r) { return r.input_tokens; });
  write_list(w, "output_lens", outcomes, [](const auto& r) { return r.output_tokens; });
  write_list(w, "ttfts", outcomes, [](const auto& r) { return r.ttft_s; });
  w.key("itls").begin_array();
  for (const RequestOutcome& r : outcomes) {
    w.begin_array();
    for (double s : r.itl_s) w.value(s);
    w.end_array();
  }
  w.end_array();
  write_list(w, "latencies", outcomes, [](const auto& r) { return r.e2el_s; });
  write_list(w, "start_times", outcomes, [](const auto& r) { return r.start_s; });
  write_list(w, "statuses", outcomes, [](const auto& r) { return r.status; });
  write_list(w, "errors", outcomes, [](const auto& r) { return r.error; });
}

std::string date_now() {
  std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &utc)};
}

std::string json_of(const LoadOptions& o, const std::string& model, const Figures& f,
                    std::span<const RequestOutcome> outcomes) {
  bool is_chat = o.endpoint.ends_with("/chat/completions");
  JsonWriter w;
  w.begin_object().field("date", date_now()).field("backend", is_chat ? "openai-chat" : "openai");
  w.field("endpoint_type", is_chat ? "openai-chat" : "openai").key("label").null();
  w.field("model_id", model).field("tokenizer_id", model).field("num_prompts", outcomes.size());
  w.key("request_rate");
  o.request_rate > 0 ? w.value(o.request_rate) : w.value("inf");
  w.field("burstiness", o.burstiness).key("max_concurrency");
  o.max_concurrency > 0 ? w.value(o.max_concurrency) : w.null();
  w.field("duration", f.duration_s).field("completed", f.completed).field("failed", f.failed);
  w.field("total_input_tokens", f.input).field("total_output_tokens", f.output);
  w.field("request_throughput", f.per_second(f.completed)).key("request_goodput");
  o.goodput_ms.empty() ? w.null() : w.value(f.per_second(f.good));
  w.field("output_throughput", f.per_second(f.output));
  w.field("total_token_throughput", f.per_second(f.input + f.output));
  w.field("max_concurrent_requests", f.together);
  for (const Summary& s : f.latencies) write_summary(w, s);
  w.field("refused", f.refused);
  write_summary(w, f.refusals);
  w.field("max_refusal_ms", f.refusals.most);
  w.key("errors_by_kind").begin_object();
  for (const auto& [error, count] : f.errors) w.field(error, count);
  w.end_object();
  if (o.is_detailed) write_requests(w, outcomes);
  return w.end_object().take();
}

std::string table_of(const LoadOptions& o, const Figures& f) {
  std::string t = fmt::format("{} completed, {} refused, {} failed in {:.2f} s; at most {} together\n", f.completed,
                              f.refused, f.failed - f.refused, f.duration_s, f.together);
  t += fmt::format("{:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s in all", f.per_second(f.completed),
                   f.per_second(f.output), f.per_second(f.input + f.output));
  if (!o.goodput_ms.empty()) t += fmt::format(", {:.2f} requests/s within the limits", f.per_second(f.good));
  t += fmt::format("\n\n{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p95", "p99", "most");
  auto row = [&t](const Summary& s) {
    t += fmt::format("{:<22}{:>10.2f}", s.title, s.mean);
    for (double p : s.percentiles) t += fmt::format("{:>10.2f}", p);
    t += fmt::format("{:>10.2f}\n", s.most);
  };
  for (const Summary& s : f.latencies) row(s);
  if (f.refused > 0) row(f.refusals);
  for (const auto& [error, count] : f.errors) t += fmt::format("failed {} times: {}\n", count, error);
  return t;
}

}  // namespace

double percentile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  double at = p / 100 * static_cast<double>(sorted.size() - 1);
  auto below = static_cast<std::size_t>(at);
  std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - std::floor(at)) * (sorted[above] - sorted[below]);
}

LoadResult report_load(const LoadOptions& options, const std::string& model, double duration_s,
                       std::span<const RequestOutcome> outcomes) {
  Figures f = figures_of(options, duration_s, outcomes);
  return {.table = table_of(options, f),
          .json = json_of(options, model, f, outcomes),
          .num_completed = f.completed,
          .num_failed = f.failed};
}

}  // namespace deepinfer::serve
