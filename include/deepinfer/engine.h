// The engine: requests in, token events out.
//
//   auto engine = Engine::create({.model = "models/tiny"}).value();
//   auto id = engine->submit(request, [](const TokenEvent& e) { ... });
//
// Thread-safe. Events of one engine come one after the other from its own thread; a sink must not block for long and
// must not call back into the engine except cancel(). Each choice of a request gets exactly one terminal event,
// whatever happens, also when the engine is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// Everything at 0 or empty means: from the environment (DEEPINFER_*), the checkpoint and the machine.
struct EngineOptions {
  std::string model = "models/tiny";  // directory, or a hub name found in the Hugging Face cache
  std::string tokenizer;              // directory; default: the model's
  std::string numerics = "fast";      // fast or vendor; fp32 and qat run on the reference backend, for comparison
  std::string backend;                // cpu (default) or ref
  int num_threads = 0;
  int64_t max_model_len = 0;       // prompt and output tokens of one sequence
  int max_num_seqs = 0;            // sequences that run together
  int max_num_batched_tokens = 0;  // rows a step
  double memory_fraction = 0.9;    // of the free memory, for the caches
  int num_drafts = -1;             // drafts a step verifies at most; 0: no speculation
  int truncation = -1;             // 0 off, 1 mask, 2 compact
  int64_t keep_tokens = 0;
  int cache_mode = -1;     // default for requests that do not say: a CacheMode
  double max_step_ms = 0;  // bound on a step that holds decode rows, kept by shrinking prefill chunks
  uint64_t seed = 0;       // seeds of requests without one derive from it
  bool log_statistics = false;
};

struct EngineStats {
  int64_t num_waiting = 0, num_running = 0;
  int64_t steps = 0, rows = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, replayed_tokens = 0, output_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0, preemptions = 0;
  std::vector<int64_t> drafted_by_position, accepted_by_position;
  int64_t blocks = 0, blocks_available = 0;
  int64_t evicted_blocks = 0, evicted_windows = 0;  // from the prefix cache
  int max_sequences = 0;                            // that run together
  int state_slots = 0, state_slots_used = 0;        // private states of sequences
  int64_t undrafted_steps = 0;  // that decoded without verifying a draft, although the engine drafts
  double confidence_error = 0;  // mean |confidence - chance to be accepted| of drafts lately; 0 without drafts
  double forward_ms = 0, sampling_ms = 0, draft_ms = 0, planning_ms = 0, idle_ms = 0;  // sums
};

// One step of the loop.
struct StepRecord {
  int64_t step = 0, begin_us = 0;  // on the steady clock
  int rows = 0, decodes = 0;       // decodes: sequences that decoded
  int64_t num_running = 0, num_waiting = 0;
  double forward_us = 0, sampling_us = 0, draft_us = 0;  // one after the other
};

class Engine {
 public:
  using Sink = std::function<void(const TokenEvent&)>;
  static constexpr int kAllChoices = -1;

  // Opens the checkpoint, plans and takes the memory, starts the threads.
  static Outcome<std::unique_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  // Queues a request and returns its id, or says what is wrong with it: field, value, limit.
  virtual Outcome<uint64_t> submit(Request request, Sink sink) = 0;
  virtual void cancel(uint64_t request, int choice = kAllChoices) = 0;
  // From the next step on: how many drafts a sequence verifies at most where a step's rows do not suffice for the
  // prompts at hand. At first as many as elsewhere.
  virtual void limit_crowded_drafts(int num_drafts) = 0;
  // What is wrong with these parameters whatever the prompt, if anything; submit looks at the prompt as well.
  virtual std::optional<Failure> check(const SamplingParams& params) const = 0;

  // All prompts together, in order; a request that fails has its error in its outputs. `progress` is called with the
  // number of finished choices; returning false cancels the rest.
  virtual std::vector<RequestOutput> generate(std::vector<Request> requests,
                                              std::function<bool(int64_t)> progress = {}) = 0;

  virtual std::vector<int32_t> encode(const std::string& text) const = 0;  // control tokens in the text are matched
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual int32_t eos_token_id() const = 0;
  virtual EngineStats stats() const = 0;
  // The last steps, oldest first: some thousand.
  virtual std::vector<StepRecord> recent_steps() const = 0;
  virtual std::string description() const = 0;  // configuration and memory plan, as printed at start
};

}  // namespace deepinfer
