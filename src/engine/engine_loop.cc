// The two threads: one plans steps and takes their results, one runs them.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

// Whether sequences decode in this step and none of them verifies a draft.
bool decodes_without_drafts(const sched::StepPlan& plan) {
  auto decodes = [](const sched::PlannedRun& run) { return run.decode; };
  auto verifies = [](const sched::PlannedRun& run) { return run.decode && run.rows > 1; };
  return std::ranges::any_of(plan.runs, decodes) && std::ranges::none_of(plan.runs, verifies);
}

}  // namespace

int64_t steady_now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void EngineImpl::schedule_loop() {
  constexpr int64_t kLongestWaitUs = 3'600'000'000;
  const size_t ahead = settings_.async_steps ? kStepsAhead : 1;
  while (true) {
    std::vector<std::unique_ptr<RequestState>> arrivals;
    std::vector<Cancellation> cancels;
    std::deque<StepResult> results;
    {
      std::unique_lock lock(mutex_);
      auto ready = [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || !results_.empty(); };
      std::optional<int64_t> deadline = scheduler_->next_deadline_us();
      // A deadline takes effect when a step is planned; with all steps planned, their results come first.
      if (deadline && unfinished_jobs_ < ahead) {
        scheduling_.wait_for(
            lock, std::chrono::microseconds(std::clamp<int64_t>(*deadline - steady_now_us(), 0, kLongestWaitUs)),
            ready);
      } else {
        scheduling_.wait(lock, ready);
      }
      if (stopping_) break;
      arrivals.swap(inbox_);
      cancels.swap(cancels_);
      for (auto [id, choice] : cancels) {
        auto it = compiling_.find(id);
        if (it == compiling_.end()) continue;
        if (choice != kAllChoices) {
          it->second->early_cancels.push_back(choice);
          continue;
        }
        it->second->refusal = Error{Code::kCancelled, ""};
        arrivals.push_back(std::move(it->second));
        compiling_.erase(it);
      }
      results.swap(results_);
      unfinished_jobs_ -= results.size();
    }
    for (StepResult& r : results) commit(r);
    for (auto& a : arrivals) admit(std::move(a));
    for (auto [id, choice] : cancels) {
      auto it = requests_.find(id);
      if (it == requests_.end()) continue;
      for (auto& c : it->second->choices) {
        if (!c->ended && (choice == kAllChoices || choice == c->index)) scheduler_->cancel(c->seq);
      }
    }
    while (unfinished_jobs_ < ahead) {
      size_t before = unfinished_jobs_;
      dispatch();
      if (unfinished_jobs_ == before) break;
    }
  }
  std::vector<ChoiceState*> open;
  for (auto& [seq, choice] : choices_) open.push_back(choice);
  for (ChoiceState* c : open) end_choice(*c, FinishReason::kCancelled, "the engine was closed");
  for (auto& state : inbox_) {
    for (int i = 0; i < state->request.sampling.n; ++i) {
      state->sink({.request = state->id,
                   .choice = i,
                   .finish_reason = FinishReason::kCancelled,
                   .error = "the engine was closed"});
    }
  }
}

void EngineImpl::dispatch() {
  int64_t begin = steady_now_us();
  scheduler_->limit_crowded_drafts(crowded_drafts_);
  StepJob job{.plan = scheduler_->plan(begin)};
  for (auto [seq, reason] : scheduler_->take_ended()) {
    auto it = choices_.find(static_cast<int32_t>(seq));
    if (it == choices_.end()) continue;
    bool late = reason == sched::EndReason::kDeadline;
    end_choice(*it->second, late ? FinishReason::kDeadline : FinishReason::kCancelled,
               late ? "the deadline passed" : "");
  }
  for (const auto& start : job.plan.starts) {
    auto tokens = scheduler_->tokens(start.seq);
    ChoiceState& choice = *choices_.at(static_cast<int32_t>(start.seq));
    if (choice.started_us == 0) choice.started_us = begin;
    job.starts.push_back({{tokens.begin(), tokens.end()}, choice.spec});
  }
  {
    std::lock_guard lock(mutex_);
    stats_.planning_ms += static_cast<double>(steady_now_us() - begin) / 1000;
    stats_.num_waiting = scheduler_->num_waiting();
    stats_.num_running = scheduler_->num_running();
    stats_.blocks_available = ledger_->num_available();
    stats_.evicted_blocks = ledger_->stats().evicted;
    stats_.evicted_windows = ledger_->stats().windows_evicted;
    stats_.state_slots_used = plan_.num_slots - scheduler_->num_free_slots();
    if (drafts_) stats_.confidence_error = drafts_->confidence_error();
    if (job.plan.empty()) return;
    stats_.undrafted_steps += drafts_ != nullptr && decodes_without_drafts(job.plan);
    jobs_.push_back(std::move(job));
    ++unfinished_jobs_;
  }
  executing_.notify_one();
}

void EngineImpl::execute_loop() {
  while (true) {
    StepJob job;
    double waited = 0;
    {
      std::unique_lock lock(mutex_);
      int64_t begin = steady_now_us();
      executing_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      waited = static_cast<double>(steady_now_us() - begin);
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    StepResult result;
    int64_t begin = steady_now_us();
    std::vector<sched::PlannedRun> runs = job.plan.runs;
    try {
      result = executor_->execute(std::move(job));
    } catch (const DeviceError& e) {
      Error error{Code::kInternal, e.what()};
      for (const auto& run : runs) result.runs.push_back({.seq = run.seq, .epoch = run.epoch, .error = error});
    }
    {
      std::lock_guard lock(mutex_);
      if (result.num_rows > 0) {
        stats_.steps += 1;
        stats_.rows += result.num_rows;
        stats_.idle_ms += waited / 1000;
        stats_.forward_ms += result.forward_us / 1000;
        stats_.sampling_ms += result.sampling_us / 1000;
        stats_.draft_ms += result.draft_us / 1000;
        record(result, begin);
      }
      results_.push_back(std::move(result));
    }
    scheduling_.notify_one();
  }
}

// With mutex_ held.
void EngineImpl::record(const StepResult& result, int64_t begin_us) {
  constexpr size_t kMostSteps = 8192;
  if (steps_.size() == kMostSteps) steps_.pop_front();
  steps_.push_back({.step = static_cast<int64_t>(result.step),
                    .begin_us = begin_us,
                    .rows = result.num_rows,
                    .decodes = result.num_decodes,
                    .num_running = stats_.num_running,
                    .num_waiting = stats_.num_waiting,
                    .forward_us = result.forward_us,
                    .sampling_us = result.sampling_us,
                    .draft_us = result.draft_us});
}

}  // namespace deepinfer::engine
