#include "serve/step_trace.h"

#include "serve/json_writer.h"

namespace deepinfer::serve {
namespace {

constexpr int kEngine = 1, kRequests = 2;  // "processes" of the trace

double microseconds(RequestSpan::Time t) {
  return std::chrono::duration<double, std::micro>(t.time_since_epoch()).count();
}

JsonWriter& begin_event(JsonWriter& w, std::string_view phase, std::string_view name, int process, double at_us) {
  return w.begin_object()
      .field("ph", phase)
      .field("name", name)
      .field("pid", process)
      .field("tid", 1)
      .field("ts", at_us);
}

void name_process(JsonWriter& w, int process, std::string_view name) {
  begin_event(w, "M", "process_name", process, 0).key("args").begin_object().field("name", name).end_object();
  w.end_object();
}

void slice(JsonWriter& w, std::string_view name, double at_us, double us) {
  begin_event(w, "X", name, kEngine, at_us).field("dur", us).end_object();
}

void counter(JsonWriter& w, std::string_view name, double at_us, int64_t value) {
  begin_event(w, "C", name, kEngine, at_us).key("args").begin_object().field("value", value).end_object();
  w.end_object();
}

void write_step(JsonWriter& w, const StepRecord& s) {
  auto at = static_cast<double>(s.begin_us);
  begin_event(w, "X", "step", kEngine, at).field("dur", s.forward_us + s.sampling_us + s.draft_us);
  w.key("args").begin_object().field("step", s.step).field("rows", s.rows).field("decoding", s.decodes);
  w.end_object().end_object();
  slice(w, "forward", at, s.forward_us);
  slice(w, "sampling", at + s.forward_us, s.sampling_us);
  if (s.draft_us > 0) slice(w, "draft", at + s.forward_us + s.sampling_us, s.draft_us);
  counter(w, "rows", at, s.rows);
  counter(w, "running", at, s.num_running);
  counter(w, "waiting", at, s.num_waiting);
}

// Slices of one request may overlap those of others, so they are tied by its number.
void mark(JsonWriter& w, std::string_view phase, std::string_view name, RequestSpan::Time at, std::size_t number,
          const RequestSpan& r) {
  begin_event(w, phase, name, kRequests, microseconds(at)).field("cat", "request").field("id", number);
  w.key("args").begin_object().field("id", r.id).field("prompt_tokens", r.prompt_tokens);
  w.field("cached_tokens", r.cached_tokens).field("completion_tokens", r.completion_tokens);
  w.field("finish", r.finish).end_object().end_object();
}

// Inner slices begin behind the outer one and end before it.
void write_request(JsonWriter& w, const RequestSpan& r, std::size_t number) {
  auto first = r.first_token.value_or(r.end);
  mark(w, "b", "request", r.begin, number, r);
  mark(w, "b", "first token", r.begin, number, r);
  mark(w, "e", "first token", first, number, r);
  if (r.first_token) {
    mark(w, "b", "answer", first, number, r);
    mark(w, "e", "answer", r.end, number, r);
  }
  mark(w, "e", "request", r.end, number, r);
}

}  // namespace

std::string step_trace(std::span<const StepRecord> steps, const RequestSpans& requests) {
  JsonWriter w;
  w.begin_object().field("displayTimeUnit", "ms").key("traceEvents").begin_array();
  name_process(w, kEngine, "engine");
  name_process(w, kRequests, "requests");
  for (const StepRecord& s : steps) write_step(w, s);
  std::size_t number = 0;
  for (const RequestSpan& r : requests.all()) write_request(w, r, ++number);
  return w.end_array().end_object().take();
}

}  // namespace deepinfer::serve
