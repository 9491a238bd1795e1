// The engine: two threads and two queues.
//
//   engine_start.cc memory, parts, threads   engine_requests.cc the way in    engine_loop.cc the two threads
//   engine_results.cc the way out            engine.cc, generate.cc what callers see
//
//   callers --submit, cancel--> [inbox] --> scheduling thread --StepJob--> [jobs] --> executing thread
//        \--so_args--> grammar compiler ----^ (the request comes in with its grammar, or with what is wrong with it)
//                                            ^   |                                        |
//                                            |   +--TokenEvent--> sinks                   |
//                                            +------------------- [results] <--StepResult-+
//
//   While a step runs, the scheduling thread plans the next one, applies stop rules to the results of the one before,
//   detokenises and calls the sinks. At most kStepsAhead jobs wait or run; without asynchronous steps, one.
//
// mutex_ guards inbox_, compiling_, cancels_, jobs_, results_, stopping_, stats_ and steps_; nothing else is shared.
#pragma once

#include <atomic>
#include <climits>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/backend.h"
#include "engine/draft_control.h"
#include "engine/executor.h"
#include "engine/memory_plan.h"
#include "engine/request_state.h"
#include "engine/settings.h"
#include "grammar/compiler.h"
#include "model/ranks.h"
#include "sched/index_ledger.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace deepinfer::engine {

int64_t steady_now_us();  // of the steady clock

class EngineImpl final : public Engine {
 public:
  static Result<std::unique_ptr<EngineImpl>> create(const EngineOptions& options, const Settings& settings);
  // The same on a backend of one's own, whatever options and settings say of it.
  static Result<std::unique_ptr<EngineImpl>> create(const EngineOptions& options, const Settings& settings,
                                                    const Backend& backend);
  ~EngineImpl() override;

  Outcome<uint64_t> submit(Request request, Sink sink) override;
  void cancel(uint64_t request, int choice = kAllChoices) override;
  void limit_crowded_drafts(int num_drafts) override { crowded_drafts_ = num_drafts; }
  std::optional<Failure> check(const SamplingParams& params) const override;
  std::vector<RequestOutput> generate(std::vector<Request> requests, std::function<bool(int64_t)> progress) override;
  std::vector<int32_t> encode(const std::string& text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t max_model_len() const override { return plan_.max_model_len; }
  int32_t eos_token_id() const override { return config().eos_token_id; }
  EngineStats stats() const override;
  std::vector<StepRecord> recent_steps() const override;
  std::string description() const override;

  const ModelConfig& config() const { return checkpoint_.config(); }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // Hexadecimal digest of what makes cached keys of one engine unusable to another: model, tokenizer, format of keys.
  const std::string& namespace_digest() const { return namespace_digest_; }

 private:
  static constexpr size_t kStepsAhead = 2;

  // engine_start.cc
  EngineImpl(weights::Checkpoint checkpoint, text::Tokenizer tokenizer, const EngineOptions& options,
             const Settings& settings);
  Result<void> build(const Backend& backend);

  // engine_requests.cc
  Result<std::unique_ptr<RequestState>> accept(Request request, Sink sink) const;
  CacheMode cache_mode_of(const SamplingParams& p) const;
  std::shared_ptr<const SequenceSpec> make_spec(const RequestState& state, int choice) const;
  sched::NewSequence make_sequence(const RequestState& state, const ChoiceState& choice, int64_t now_us) const;
  void compile_grammar(uint64_t request);
  void compiled(uint64_t request, Result<std::shared_ptr<const grammar::Grammar>> grammar);
  void admit(std::unique_ptr<RequestState> state);
  void refuse(RequestState& state);

  // engine_loop.cc
  void schedule_loop();
  void execute_loop();
  void dispatch();
  void record(const StepResult& result, int64_t begin_us);

  // engine_results.cc
  void commit(const StepResult& result);
  void commit_run(const RunResult& run);
  void publish(ChoiceState& choice, const sampling::TokenReport& report, FinishReason& reason);
  void end_choice(ChoiceState& choice, FinishReason reason, const std::string& error = "", bool is_user_error = false);
  void emit(ChoiceState& choice, TokenEvent event);
  void count(const ChoiceState& choice);
  void log_statistics();

  EngineOptions options_;
  Settings settings_;
  weights::Checkpoint checkpoint_;
  text::Tokenizer tokenizer_;
  std::vector<int32_t> compressed_ids_;
  MemoryPlan plan_;
  std::string namespace_digest_;
  std::atomic<int> crowded_drafts_ = INT_MAX;  // read when a step is planned

  std::unique_ptr<model::Ranks> ranks_;  // one rank
  cache::WindowPool windows_;
  std::unique_ptr<Executor> executor_;

  // Owned by the scheduling thread.
  std::unique_ptr<sched::IndexLedger> ledger_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::unique_ptr<DraftControl> drafts_;  // nullptr: the engine does not draft
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::unordered_map<int32_t, ChoiceState*> choices_;  // by sequence

  mutable std::mutex mutex_;
  std::condition_variable scheduling_, executing_;
  std::vector<std::unique_ptr<RequestState>> inbox_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> compiling_;  // by request
  struct Cancellation {
    uint64_t request;
    int choice;
  };
  std::vector<Cancellation> cancels_;
  std::deque<StepJob> jobs_;
  std::deque<StepResult> results_;
  size_t unfinished_jobs_ = 0;
  bool stopping_ = false;
  uint64_t next_request_ = 1;
  EngineStats stats_;
  std::deque<StepRecord> steps_;

  std::unique_ptr<grammar::Compiler> compiler_;
  std::thread schedule_thread_, execute_thread_;
};

}  // namespace deepinfer::engine
