#include "serve/otlp.h"

#include <random>

#include "base/log.h"
#include "serve/json_writer.h"
#include "serve/version.h"

namespace deepinfer::serve {
namespace {

constexpr std::size_t kMostKept = 4096;
constexpr std::chrono::seconds kPeriod{1};
constexpr std::chrono::milliseconds kTimeout{5000};
constexpr int kServerSpan = 2, kErrorStatus = 2;  // of the protocol's enums

std::string random_hex(int digits) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string hex;
  while (static_cast<int>(hex.size()) < digits) hex += fmt::format("{:016x}", random());
  hex.resize(static_cast<std::size_t>(digits));
  return hex;
}

struct Parent {
  std::string trace, span;
};

// "00-<32 hex>-<16 hex>-<2 hex>"; anything else begins a trace of its own.
Parent parent_of(std::string_view traceparent) {
  constexpr std::size_t kLength = 55, kTraceAt = 3, kSpanAt = 36;
  auto is_hex = [](std::string_view s) { return s.find_first_not_of("0123456789abcdef") == s.npos; };
  bool is_whole = traceparent.size() == kLength && traceparent[2] == '-' && traceparent[kSpanAt - 1] == '-' &&
                  traceparent[kSpanAt + 16] == '-' && is_hex(traceparent.substr(kTraceAt, 32)) &&
                  is_hex(traceparent.substr(kSpanAt, 16));
  if (!is_whole) return {.trace = random_hex(32), .span = ""};
  return {.trace = std::string(traceparent.substr(kTraceAt, 32)), .span = std::string(traceparent.substr(kSpanAt, 16))};
}

void attribute(JsonWriter& w, std::string_view key, std::string_view kind, std::string_view value) {
  w.begin_object().field("key", key).key("value").begin_object().field(kind, value).end_object().end_object();
}
// 64-bit numbers are strings in the protocol's JSON.
void attribute(JsonWriter& w, std::string_view key, int64_t value) {
  if (value >= 0) attribute(w, key, "intValue", std::to_string(value));
}

void write_span(JsonWriter& w, const RequestSpan& s, const TwoClocks& now) {
  auto nanoseconds = [&](RequestSpan::Time t) {
    auto wall = now.system + std::chrono::duration_cast<std::chrono::system_clock::duration>(t - now.steady);
    return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(wall.time_since_epoch()).count());
  };
  Parent parent = parent_of(s.traceparent);
  w.begin_object().field("traceId", parent.trace).field("spanId", random_hex(16));
  if (!parent.span.empty()) w.field("parentSpanId", parent.span);
  w.field("name", "generate").field("kind", kServerSpan);
  w.field("startTimeUnixNano", nanoseconds(s.begin)).field("endTimeUnixNano", nanoseconds(s.end));
  w.key("attributes").begin_array();
  attribute(w, "deepinfer.request_id", "stringValue", s.id);
  attribute(w, "gen_ai.response.finish_reasons", "stringValue", s.finish);
  attribute(w, "gen_ai.usage.input_tokens", s.prompt_tokens);
  attribute(w, "gen_ai.usage.output_tokens", s.completion_tokens);
  attribute(w, "deepinfer.cached_tokens", s.cached_tokens);
  w.end_array().key("events").begin_array();
  if (s.first_token) {
    w.begin_object().field("name", "first token").field("timeUnixNano", nanoseconds(*s.first_token)).end_object();
  }
  w.end_array();
  if (s.finish == "error") w.key("status").begin_object().field("code", kErrorStatus).end_object();
  w.end_object();
}

}  // namespace

std::string otlp_body(const std::vector<RequestSpan>& spans, const TwoClocks& now) {
  JsonWriter w;
  w.begin_object().key("resourceSpans").begin_array().begin_object();
  w.key("resource").begin_object().key("attributes").begin_array();
  attribute(w, "service.name", "stringValue", "deepinfer");
  attribute(w, "service.version", "stringValue", kVersion);
  w.end_array().end_object();
  w.key("scopeSpans").begin_array().begin_object();
  w.key("scope").begin_object().field("name", "deepinfer.serve").end_object();
  w.key("spans").begin_array();
  for (const RequestSpan& s : spans) write_span(w, s, now);
  w.end_array().end_object().end_array();
  return w.end_object().end_array().end_object().take();
}

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::create(net::Loop& loop, const std::string& url) {
  auto client = net::HttpClient::create(loop, url, {.timeout = kTimeout});
  if (!client) return fail(Code::kInvalid, "--otlp: {}", client.error().message);
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(loop, url, std::move(*client)));
}

OtlpExporter::OtlpExporter(net::Loop& loop, std::string url, std::unique_ptr<net::HttpClient> client)
    : url_(std::move(url)), client_(std::move(client)) {
  loop.every(kPeriod, [this] { flush(); });
}

void OtlpExporter::add(const RequestSpan& span) {
  if (spans_.size() < kMostKept) spans_.push_back(span);
}

void OtlpExporter::flush() {
  if (spans_.empty() || is_sending_) return;
  is_sending_ = true;
  TwoClocks now{std::chrono::steady_clock::now(), std::chrono::system_clock::now()};
  net::HttpRequest request{.method = "POST",
                           .path = "/v1/traces",
                           .headers = {{"Content-Type", "application/json"}},
                           .body = otlp_body(std::exchange(spans_, {}), now)};
  // Shared by the callbacks of one request.
  auto status = std::make_shared<int>(0);
  client_->send(std::move(request), {.on_head = [status](int s, const net::Headers&) { *status = s; },
                                     .on_body = nullptr,
                                     .on_end =
                                         [this, status](const std::optional<Error>& error) {
                                           on_sent(!error && *status == 200,
                                                   error ? error->message : fmt::format("HTTP {}", *status));
                                         }});
}

void OtlpExporter::on_sent(bool is_taken, const std::string& why) {
  is_sending_ = false;
  if (!is_taken && !is_failing_) spdlog::warn("traces for {} are dropped: {}", url_, why);
  if (is_taken && is_failing_) spdlog::info("traces are taken again by {}", url_);
  is_failing_ = !is_taken;
}

}  // namespace deepinfer::serve
