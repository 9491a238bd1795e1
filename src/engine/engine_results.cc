// The way out: stop rules and text of what a step gave, and the events that tell of it. The scheduling thread runs it.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

double seconds(int64_t begin_us, int64_t end_us) {
  return static_cast<double>(end_us - begin_us) / 1e6;
}

}  // namespace

void EngineImpl::commit(const StepResult& result) {
  if (result.num_rows > 0)
    scheduler_->observe(result.num_rows, result.forward_us + result.sampling_us + result.draft_us);
  if (drafts_) drafts_->observe(result);
  for (const RunResult& run : result.runs) commit_run(run);
  if (options_.log_statistics && settings_.logging_interval_steps > 0 &&
      result.step % static_cast<uint64_t>(settings_.logging_interval_steps) == 0) {
    log_statistics();
  }
}

// Applies the stop rules to the tokens of one run, tells the scheduler what counts, then publishes it.
void EngineImpl::commit_run(const RunResult& run) {
  auto it = choices_.find(static_cast<int32_t>(run.seq));
  if (it == choices_.end()) return;
  ChoiceState& choice = *it->second;
  if (run.error) {
    scheduler_->cancel(run.seq);
    end_choice(choice, FinishReason::kError, run.error->message, exit_code(*run.error) == 2);
    return;
  }
  std::vector<int32_t> ids;
  for (const auto& report : run.tokens) ids.push_back(report.token);
  const SamplingParams& p = choice.request->request.sampling;
  sampling::StopRule rule{.eos_id = config().eos_token_id,
                          .ignores_eos = p.ignore_eos,
                          .stop_ids = p.stop_token_ids,
                          .max_tokens = choice.spec->max_total - choice.spec->prompt_length};
  sampling::StopCut cut = sampling::cut_at_stop(ids, choice.num_output, rule);
  ids.resize(static_cast<size_t>(cut.kept));
  sched::SequenceStats reuse = scheduler_->stats(run.seq);
  choice.usage.cached_tokens = reuse.cached_tokens;
  choice.usage.replayed_tokens = reuse.replayed_tokens;
  choice.usage.from_stored_windows = reuse.from_stored_windows;
  choice.usage.miss_cause = reuse.miss_cause;
  choice.preemptions = reuse.preemptions;
  // Stop strings are found while publishing, so the scheduler is told first and hears of that end as a cancellation.
  if (!scheduler_->commit({.seq = run.seq,
                           .epoch = run.epoch,
                           .computed = run.end_pos,
                           .tokens = ids,
                           .planned_rows = run.planned_rows,
                           .survivals = drafts_ ? drafts_->survivals(run, p.temperature) : std::vector<float>(),
                           .stored_windows = run.stored_windows,
                           .has_end_token = run.has_end_token && ids.size() == run.tokens.size(),
                           .finished = cut.reason != sampling::StopReason::kNone})) {
    return;
  }
  if (choice.num_output == 0 && !run.prompt.empty()) {  // by position: after a preemption the rows run again
    choice.prompt_logprobs.resize(static_cast<size_t>(run.first_pos));
    for (const auto& r : run.prompt) choice.prompt_logprobs.push_back(r.raw_logprob);
  }
  if (ids.empty()) return;
  const int accepted = static_cast<int>(run.tokens.size()) - 1 - run.has_end_token;
  choice.usage.steps += 1;
  choice.usage.drafted_tokens += run.drafted;
  choice.usage.accepted_tokens += accepted;
  {
    std::lock_guard lock(mutex_);
    stats_.output_tokens += cut.kept;
    stats_.drafted_tokens += run.drafted;
    stats_.accepted_tokens += accepted;
    for (int k = 0; k < run.drafted; ++k) {
      stats_.drafted_by_position[static_cast<size_t>(k)] += 1;
      stats_.accepted_by_position[static_cast<size_t>(k)] += k < accepted;
    }
  }
  for (int k = 0; k < cut.kept; ++k) {
    FinishReason reason = FinishReason::kNone;
    if (k + 1 == cut.kept && cut.reason == sampling::StopReason::kStop) reason = FinishReason::kStop;
    if (k + 1 == cut.kept && cut.reason == sampling::StopReason::kLength) reason = FinishReason::kLength;
    publish(choice, run.tokens[static_cast<size_t>(k)], reason);
    if (reason == FinishReason::kNone) continue;
    if (cut.reason == sampling::StopReason::kNone) scheduler_->cancel(run.seq);
    return;
  }
}

// Sends one token; a stop string completed by it turns `reason` into kStop.
void EngineImpl::publish(ChoiceState& choice, const sampling::TokenReport& report, FinishReason& reason) {
  TokenEvent event{.token = report.token};
  bool is_stop_id = reason == FinishReason::kStop;
  std::string piece;
  if (!is_stop_id) choice.detokenizer->push(report.token, piece);
  if (reason != FinishReason::kNone) choice.detokenizer->finish(piece, text::Detokenizer::CutCharacter::kDrop);
  choice.stops->push(piece, event.text);
  if (choice.stops->is_found()) {
    reason = FinishReason::kStop;
    event.stop = choice.request->request.sampling.stop[static_cast<size_t>(*choice.stops->found())];
  } else if (reason != FinishReason::kNone) {
    choice.stops->finish(event.text);
  }
  choice.num_output += 1;
  if (choice.num_output == 1) choice.usage.prefill_s = seconds(choice.started_us, steady_now_us());
  if (choice.spec->wants_logprobs) {
    event.logprob =
        choice.spec->params.logprob_kind == LogprobKind::kRaw ? report.raw_logprob : report.processed_logprob;
    for (const auto& top : report.top) event.top_logprobs.push_back({top.id, top.logprob});
  }
  if (choice.num_output == 1) event.prompt_logprobs = std::move(choice.prompt_logprobs);
  event.finish_reason = reason;
  emit(choice, std::move(event));
}

void EngineImpl::end_choice(ChoiceState& choice, FinishReason reason, const std::string& error, bool is_user_error) {
  if (choice.ended) return;
  TokenEvent event{.finish_reason = reason, .error = error, .is_user_error = is_user_error};
  std::string rest;
  choice.detokenizer->finish(rest, text::Detokenizer::CutCharacter::kDrop);
  choice.stops->push(rest, event.text);
  choice.stops->finish(event.text);
  emit(choice, std::move(event));
}

void EngineImpl::emit(ChoiceState& choice, TokenEvent event) {
  RequestState& r = *choice.request;
  event.request = r.id;
  event.choice = choice.index;
  if (event.finish_reason != FinishReason::kNone) {
    choice.ended = true;
    choice.usage.completion_tokens = choice.num_output;
    if (r.grammar) choice.usage.grammar_s = seconds(r.submitted_us, r.queued_us);
    if (choice.started_us > 0) choice.usage.queue_s = seconds(r.queued_us, choice.started_us);
    event.usage = choice.usage;
    count(choice);
  }
  bool is_last = event.finish_reason != FinishReason::kNone;
  r.sink(event);
  if (!is_last) return;
  if (drafts_) drafts_->forget(choice.seq);
  choices_.erase(static_cast<int32_t>(choice.seq));
  if (++r.num_ended == static_cast<int>(r.choices.size())) requests_.erase(r.id);
}

void EngineImpl::count(const ChoiceState& choice) {
  std::lock_guard lock(mutex_);
  stats_.prompt_tokens += choice.usage.prompt_tokens;
  stats_.cached_tokens += choice.usage.cached_tokens;
  stats_.replayed_tokens += choice.usage.replayed_tokens;
  stats_.preemptions += choice.preemptions;
}

void EngineImpl::log_statistics() {
  EngineStats s = stats();
  spdlog::info("step {}: {} running, {} waiting, {} of {} blocks free, {:.2f} rows a step, {} of {} drafts accepted",
               s.steps, s.num_running, s.num_waiting, s.blocks_available, s.blocks,
               static_cast<double>(s.rows) / static_cast<double>(std::max<int64_t>(1, s.steps)), s.accepted_tokens,
               s.drafted_tokens);
}

}  // namespace deepinfer::engine
