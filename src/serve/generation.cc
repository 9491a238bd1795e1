#include "serve/generation.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "serve/ids.h"

namespace deepinfer::serve {
namespace {

using Clock = net::Loop::Clock;
using text::OutputDelta;

constexpr std::chrono::seconds kKeepAlivePeriod{10};

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

double now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Appends a delta, joined to the last one where they are of one kind.
void append_text(std::vector<OutputDelta>& deltas, std::string_view text) {
  if (text.empty()) return;
  if (deltas.empty() || deltas.back().kind != OutputDelta::Kind::kContent) deltas.push_back({});
  deltas.back().text += text;
}

// Why the engine ended a request, in the words of the API. `form_field` stands for what the engine calls
// so_args.schema.
ApiError failure_of(const TokenEvent& event, const std::string& form_field) {
  if (event.finish_reason == FinishReason::kDeadline)
    return {.status = 504, .message = event.error, .code = "deadline_exceeded"};
  std::string message = event.error.empty() ? "the request was cancelled" : event.error;
  if (!event.is_user_error) return {.status = 500, .message = std::move(message)};
  constexpr std::string_view kForm = "so_args.schema";
  if (message.starts_with(kForm)) message.replace(0, kForm.size(), form_field);
  return invalid_request(std::move(message));
}

}  // namespace

struct Generations::Choice {
  explicit Choice(int i) : index(i) {}
  void name_calls() {
    while (static_cast<int>(call_ids.size()) < parser->num_calls())
      call_ids.push_back(new_call_id(static_cast<int>(call_ids.size())));
  }

  int index = 0;
  int prompt = 0;
  std::optional<text::OutputParser> parser;  // of chats
  // Gained since the last piece.
  std::vector<OutputDelta> deltas;
  std::vector<TokenLogprob> logprobs;
  std::vector<int32_t> token_ids;
  std::vector<std::optional<float>> prompt_logprobs;

  std::vector<std::string> call_ids;
  std::vector<int32_t> written;  // all tokens, of answers that may hold calls
  int64_t num_tokens = 0, reasoning_tokens = 0;
  bool is_cut = false;  // the parser saw the end before the engine did
  bool is_ended = false;
  std::string finish_reason, stop;
  std::optional<Clock::time_point> last_token;
  Usage usage;
};

struct Generations::Run {
  uint64_t id = 0;
  const Model* model = nullptr;
  CallPtr call;
  GenerationPlan plan;
  uint64_t ticket = 0;
  std::vector<uint64_t> engine_ids;  // one a prompt
  std::vector<Choice> choices;
  std::size_t num_ended = 0;
  bool has_begun = false, is_over = false;
  Clock::time_point begin = Clock::now(), last_sent = begin;
  std::optional<Clock::time_point> first_token;
  bool is_dirty = false;  // has something for the responder
};

// Where the engine's thread leaves its events.
struct Generations::Inbox {
  struct Item {
    uint64_t run;
    int prompt;
    TokenEvent event;
  };
  std::mutex mutex;  // guards what follows
  std::vector<Item> items;
  bool is_posted = false;  // the loop knows
  bool is_closed = false;
};

Generations::Generations(net::Loop& loop, Admission& admission, Metrics& metrics, WrittenAnswers& written)
    : loop_(loop), admission_(admission), metrics_(metrics), written_(written), inbox_(std::make_shared<Inbox>()) {}

Generations::~Generations() {
  std::lock_guard lock(inbox_->mutex);
  inbox_->is_closed = true;
}

// ---- beginning --------------------------------------------------------------------------------------------------

void Generations::start(const Model& model, CallPtr call, GenerationPlan plan) {
  if (!call->exchange->is_open()) return;  // went away while its body was read
  auto run = std::make_shared<Run>();
  run->id = next_run_++;
  run->model = &model;
  run->call = std::move(call);
  run->plan = std::move(plan);
  if (!run->plan.unknown_fields.empty()) {
    run->call->headers.push_back({"x-deepinfer-unknown-fields", unknown_fields_header(run->plan.unknown_fields)});
  }
  if (!admit(*run)) return;
  runs_.emplace(run->id, run);
  for (const std::string& id : {run->plan.id, run->call->request_id}) by_id_.emplace(id, run->id);
  run->call->exchange->on_close = [this, id = run->id,
                                   before = std::move(run->call->exchange->on_close)](net::CloseReason reason) {
    if (before) before(reason);
    on_closed(id, reason);
  };
  submit(*run);
}

bool Generations::admit(Run& run) {
  Work work;
  for (const Request& r : run.plan.requests) {
    work.prompt_tokens += static_cast<double>(r.prompt.size());
    work.output_tokens = std::max(work.output_tokens, static_cast<double>(r.sampling.max_tokens));
    work.num_choices = static_cast<int>(run.plan.requests.size()) * r.sampling.n;
    if (r.sampling.deadline_ms) work.deadline_s = static_cast<double>(*r.sampling.deadline_ms) / 1000;
  }
  auto ticket = admission_.admit(run.call->principal, work, now_s());
  if (!ticket) {
    metrics_.rejected(ticket.error().code);
    run.call->reply_error(ticket.error());
    return false;
  }
  run.ticket = *ticket;
  return true;
}

// Hands all prompts to the engine; one that is refused fails the call.
void Generations::submit(Run& run) {
  const Principal& who = run.call->principal;
  for (std::size_t p = 0; p < run.plan.requests.size(); ++p) {
    Request& request = run.plan.requests[p];
    request.tenant = who.name;
    if (who.priority != 0 && request.sampling.priority == 0) request.sampling.priority = who.priority;
    for (int i = 0; i < request.sampling.n; ++i) {
      Choice choice(static_cast<int>(run.choices.size()));
      choice.prompt = static_cast<int>(p);
      if (run.plan.is_chat) choice.parser.emplace(run.plan.format);
      run.choices.push_back(std::move(choice));
    }
  }
  for (std::size_t p = 0; p < run.plan.requests.size(); ++p) {
    auto sink = [inbox = inbox_, this, id = run.id, prompt = static_cast<int>(p)](const TokenEvent& event) {
      std::lock_guard lock(inbox->mutex);
      if (inbox->is_closed) return;
      inbox->items.push_back({id, prompt, event});
      if (std::exchange(inbox->is_posted, true)) return;
      loop_.post([this] { deliver(); });
    };
    auto submitted = run.model->engine->submit(std::move(run.plan.requests[p]), std::move(sink));
    if (!submitted) {
      ApiError e = invalid_request(submitted.failure().message);
      if (!submitted.failure().is_user_error) e.status = 503;
      return fail(run.id, e);
    }
    run.engine_ids.push_back(*submitted);
  }
}

// As late as possible: what fails before the first token is answered with a status of its own.
void Generations::ensure_begun(Run& run) {
  if (std::exchange(run.has_begun, true)) return;
  run.plan.responder->begin(run.call);
}

// ---- events -----------------------------------------------------------------------------------------------------

void Generations::deliver() {
  std::vector<Inbox::Item> items;
  {
    std::lock_guard lock(inbox_->mutex);
    items.swap(inbox_->items);
    inbox_->is_posted = false;
  }
  std::vector<std::shared_ptr<Run>> dirty;
  for (Inbox::Item& item : items) {
    auto it = runs_.find(item.run);
    if (it == runs_.end()) continue;
    Run& run = *it->second;
    if (!run.is_dirty) dirty.push_back(it->second);
    run.is_dirty = true;
    on_event(run, item.prompt, item.event);
  }
  for (auto& run : dirty) {
    run->is_dirty = false;
    if (!run->is_over) flush(*run);
  }
}

void Generations::on_event(Run& run, int prompt, TokenEvent& event) {
  if (run.is_over) return;
  std::size_t per_prompt = run.choices.size() / run.engine_ids.size();
  Choice& c = run.choices[static_cast<std::size_t>(prompt) * per_prompt + static_cast<std::size_t>(event.choice)];
  if (c.is_ended) return;
  if (event.finish_reason == FinishReason::kError || event.finish_reason == FinishReason::kDeadline ||
      (event.finish_reason == FinishReason::kCancelled && !c.is_cut)) {
    return fail(run.id, failure_of(event, run.plan.form_field));
  }
  if (!event.prompt_logprobs.empty()) c.prompt_logprobs = std::move(event.prompt_logprobs);
  if (!c.is_cut) on_token(run, c, event);
  if (event.finish_reason != FinishReason::kNone) return end_choice(run, c, event);
  if (!c.is_cut && c.parser && c.parser->is_done()) {
    c.is_cut = true;
    run.model->engine->cancel(run.engine_ids[static_cast<std::size_t>(prompt)], event.choice);
  }
}

void Generations::on_token(Run& run, Choice& c, const TokenEvent& event) {
  if (event.token >= 0) {
    auto now = Clock::now();
    if (!run.first_token) {
      run.first_token = now;
      admission_.start(run.ticket, now_s());
      metrics_.first_token(seconds_between(run.begin, now));
    }
    if (c.last_token) metrics_.between_tokens(seconds_between(*c.last_token, now));
    c.last_token = now;
    admission_.produce(run.ticket, 1);
    ++c.num_tokens;
    if (c.parser && c.parser->is_reasoning()) ++c.reasoning_tokens;
    if (event.logprob) c.logprobs.push_back({event.token, *event.logprob, event.top_logprobs});
    if (run.plan.wants_token_ids) c.token_ids.push_back(event.token);
    bool is_end_mark = event.token == run.model->engine->eos_token_id();
    if (run.plan.format.parses_tool_calls && !is_end_mark) c.written.push_back(event.token);
  }
  if (c.parser) {
    c.parser->push(event.text, c.deltas);
    c.name_calls();
  } else {
    append_text(c.deltas, event.text);
  }
}

void Generations::end_choice(Run& run, Choice& c, const TokenEvent& event) {
  c.is_ended = true;
  ++run.num_ended;
  c.usage = event.usage;
  c.usage.completion_tokens = c.num_tokens;
  c.stop = event.stop;
  bool has_stopped = c.is_cut || (c.parser && c.parser->is_done());  // before the engine's own end
  std::string_view reason = event.finish_reason == FinishReason::kLength && !has_stopped ? "length" : "stop";
  if (c.parser) {
    c.parser->finish(c.deltas);
    c.name_calls();
    if (!c.call_ids.empty()) {
      written_.keep(run.call->principal.name, c.call_ids[0], *run.model->tokenizer, run.plan.format, c.written);
    }
    reason = c.parser->finish_reason(reason);
    if (auto found = c.parser->stop_index()) c.stop = run.plan.format.stops[static_cast<std::size_t>(*found)];
  }
  c.finish_reason = reason;
}

void Generations::flush(Run& run) {
  ensure_begun(run);
  if (run.is_over) return;  // a client that went away ends the run inside the responder
  for (Choice& c : run.choices) {
    bool has_news = !c.deltas.empty() || !c.token_ids.empty() || !c.prompt_logprobs.empty() || !c.logprobs.empty();
    if (has_news) {
      Piece piece{.choice = c.index,
                  .deltas = c.deltas,
                  .call_ids = c.call_ids,
                  .logprobs = c.logprobs,
                  .token_ids = c.token_ids,
                  .prompt_logprobs = c.prompt_logprobs};
      run.last_sent = Clock::now();
      run.plan.responder->piece(piece);
      if (run.is_over) return;
      c.deltas.clear();
      c.logprobs.clear();
      c.token_ids.clear();
      c.prompt_logprobs.clear();
    }
    if (!c.is_ended || c.finish_reason.empty()) continue;
    run.plan.responder->choice_end({.choice = c.index, .finish_reason = c.finish_reason, .stop = c.stop});
    if (run.is_over) return;
    metrics_.finished(c.finish_reason);
    run.call->finish = std::exchange(c.finish_reason, {});
  }
  if (run.num_ended == run.choices.size()) finish(run);
}

// ---- ending -----------------------------------------------------------------------------------------------------

void Generations::finish(Run& run) {
  CallUsage u;
  int prompt = -1;
  for (const Choice& c : run.choices) {
    u.completion_tokens += c.usage.completion_tokens;
    u.reasoning_tokens += c.reasoning_tokens;
    u.drafted_tokens += c.usage.drafted_tokens;
    u.accepted_tokens += c.usage.accepted_tokens;
    if (c.prompt == prompt) continue;
    prompt = c.prompt;
    metrics_.prompt(c.usage);
    u.grammar_ms = std::max(u.grammar_ms, c.usage.grammar_s.value_or(0) * 1000);
    u.queue_ms = std::max(u.queue_ms, c.usage.queue_s.value_or(0) * 1000);
    u.prefill_ms = std::max(u.prefill_ms, c.usage.prefill_s.value_or(0) * 1000);
    u.prompt_tokens += c.usage.prompt_tokens;
    u.cached_tokens += c.usage.cached_tokens;
    u.replayed_tokens += c.usage.replayed_tokens;
    u.from_stored_windows |= c.usage.from_stored_windows;
  }
  auto now = Clock::now();
  double first_s = run.first_token ? seconds_between(run.begin, *run.first_token) : 0;
  double total_s = seconds_between(run.begin, now);
  u.first_token_ms = first_s * 1000;
  u.total_ms = total_s * 1000;
  metrics_.generated(u.completion_tokens);
  metrics_.end_to_end(total_s, u.completion_tokens, first_s);
  run.call->prompt_tokens = u.prompt_tokens;
  run.call->completion_tokens = u.completion_tokens;
  run.call->cached_tokens = u.cached_tokens;
  auto hold = runs_.at(run.id);
  remove(run);
  hold->plan.responder->finish(hold->call, u);
}

void Generations::fail(uint64_t run_id, const ApiError& why) {
  auto it = runs_.find(run_id);
  if (it == runs_.end()) return;
  auto run = it->second;
  run->call->error = why.message;
  run->call->finish = "error";
  remove(*run);
  for (uint64_t id : run->engine_ids) run->model->engine->cancel(id);
  metrics_.finished("error");
  if (run->has_begun) {
    run->plan.responder->fail(run->call, why);
  } else {
    run->call->reply_error(why);
  }
}

void Generations::on_closed(uint64_t run_id, net::CloseReason reason) {
  auto it = runs_.find(run_id);
  if (it == runs_.end()) return;  // the usual end
  auto run = it->second;
  bool is_slow = reason == net::CloseReason::kSlowReader;
  run->call->finish = is_slow ? "slow_reader" : "disconnected";
  remove(*run);
  for (uint64_t id : run->engine_ids) run->model->engine->cancel(id);
  metrics_.cancelled(is_slow ? "slow_reader" : run->first_token ? "disconnected_running" : "disconnected_waiting");
}

void Generations::remove(Run& run) {
  run.is_over = true;
  RequestSpan span{.id = run.call->request_id,
                   .begin = run.begin,
                   .end = Clock::now(),
                   .first_token = run.first_token,
                   .prompt_tokens = run.call->prompt_tokens,
                   .cached_tokens = run.call->cached_tokens,
                   .finish = run.call->finish,
                   .traceparent = std::string(run.call->request().header("traceparent"))};
  for (const Choice& c : run.choices) span.completion_tokens += c.num_tokens;
  spans_.add(std::move(span));
  admission_.release(run.ticket);
  for (const std::string& id : {run.plan.id, run.call->request_id}) {
    auto it = by_id_.find(id);
    if (it != by_id_.end() && it->second == run.id) by_id_.erase(it);  // a client may have used an id twice
  }
  runs_.erase(run.id);
}

bool Generations::cancel(const Principal& who, std::string_view id) {
  auto it = by_id_.find(id);
  if (it == by_id_.end()) return false;
  Run& run = *runs_.at(it->second);
  if (run.call->principal.name != who.name && !who.is_admin) return false;
  metrics_.cancelled("by_id");
  fail(run.id, {.status = 499, .message = fmt::format("the request {} was cancelled", id), .code = "cancelled"});
  return true;
}

void Generations::cancel_all(const ApiError& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, run] : runs_) ids.push_back(id);
  for (uint64_t id : ids) fail(id, why);
}

void Generations::tick(Clock::time_point now) {
  std::vector<std::shared_ptr<Run>> quiet;
  for (auto& [id, run] : runs_) {
    if (now - run->last_sent >= kKeepAlivePeriod) quiet.push_back(run);
  }
  for (auto& run : quiet) {
    run->last_sent = now;
    ensure_begun(*run);
    if (!run->is_over) run->plan.responder->keep_alive();
  }
}

}  // namespace deepinfer::serve
