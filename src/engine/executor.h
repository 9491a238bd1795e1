// Carries out step plans: forward pass, sampling and verification, drafting. Knows devices; decides nothing.
//
//   plan -> bind rows (tokens, positions, block tables) -> model.forward -> sample / verify -> model.propose -> result
//
//   A decode run takes its position and drafts from what the step before left here, so the host need not know them when
//   it plans. Results are handed back; whether they still count is the scheduler's business (epochs).
//
// One thread owns it, with the rank's stream and model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/window_pool.h"
#include "engine/sequence_spec.h"
#include "engine/simulated_drafts.h"
#include "model/model.h"
#include "sampling/verify.h"
#include "sched/plan.h"
#include "sched/replay_plan.h"

namespace deepinfer::engine {

// A sequence that a plan starts: its tokens so far and its parameters.
struct StartData {
  std::vector<int32_t> tokens;
  std::shared_ptr<const SequenceSpec> spec;  // owners: the request record and the executor's sequence
};

struct StepJob {
  sched::StepPlan plan;
  std::vector<StartData> starts;  // one for each plan.starts
};

struct RunResult {
  sched::SeqId seq = sched::kNoSequence;
  uint32_t epoch = 0;
  int64_t end_pos = 0;                        // prefill: end of the chunk
  int32_t planned_rows = 0;                   // of the plan; fewer ran if fewer drafts were there
  int32_t drafted = 0;                        // drafts verified
  std::vector<sampling::TokenReport> tokens;  // accepted drafts and the final token; empty for inner chunks
  int64_t first_pos = 0;                      // of the run's first row
  std::vector<sampling::TokenReport> prompt;  // log-probabilities of the prompt tokens after first_pos, one a row
  // The confidence head's logits of the drafts just proposed; +inf: the draft does not come from the head.
  std::vector<float> confidences;
  std::vector<float> labels;        // acceptance probabilities of the verified drafts, for calibration
  std::vector<float> label_logits;  // the head's logits of these
  bool stored_windows = false;      // the run passed the boundary that the plan names, and copied
  bool has_end_token = false;       // the last of `tokens` is the grammar's only way on: no row was computed for it
  std::optional<Error> error;       // this sequence cannot go on
};

struct StepResult {
  uint64_t step = 0;
  int num_rows = 0;
  int num_decodes = 0;          // sequences that decoded
  bool is_decode_only = false;  // no prompt chunk ran: what was measured can be compared
  int64_t context_tokens = 0;   // that the decode rows' sequences hold
  std::vector<RunResult> runs;
  double forward_us = 0, sampling_us = 0, draft_us = 0;
};

class Executor {
 public:
  struct Parts {
    model::Model* model = nullptr;
    cache::GlobalPool* global = nullptr;
    cache::StatePool* states = nullptr;
    cache::WindowPool* windows = nullptr;  // stored ones
    Device* device = nullptr;
    Stream* stream = nullptr;
    const std::vector<int32_t>* compressed_ids = nullptr;  // token id -> compressed id; empty without Engram
    int num_threads = 1;
    int max_rows = 0, max_logit_rows = 0, max_sequences = 0;
    int num_drafts = 0;
    sched::ReplayConfig replay;
    std::optional<DraftQuality> draft_quality;  // simulated, for benchmarks
  };

  static int64_t buffer_bytes(const ModelConfig& config, int max_logit_rows, int max_sequences);
  static Result<std::unique_ptr<Executor>> create(Parts parts);

  StepResult execute(StepJob job);

 private:
  struct Sequence {
    uint32_t epoch = 0;
    int32_t slot = 0;
    std::shared_ptr<const SequenceSpec> spec;
    std::vector<int32_t> tokens;
    std::vector<int32_t> blocks;
    std::vector<int32_t> output;                     // the tokens after the prompt
    std::vector<int32_t> drafts;                     // for the positions after the last token
    std::vector<float> confidences;                  // the head's logits of the drafts
    std::vector<sampling::Distribution> draft_laws;  // what they were drawn from; unused with common noise
    sampling::TokenCounts counts;
    std::optional<SequenceGrammar> grammar;
    std::optional<Error> failure;  // of its start: told with its first token
    std::vector<int32_t> likely;   // the grammar's next drafts, last first
    int num_proposed = 0;          // drafts of the running draft pass that may be verified
    uint64_t likely_drafts = 0;    // bit k: draft k of that pass is the grammar's
  };
  struct Bound {  // a run with its rows in place
    const sched::PlannedRun* run = nullptr;
    Sequence* sequence = nullptr;
    int row_begin = 0, num_rows = 0;
    int64_t first_pos = 0;
    int logit_begin = -1, num_logits = 0;
    int context_begin = 0, context_size = 0;
  };

  explicit Executor(Parts parts);
  void start(const sched::PlannedStart& start, StartData data);
  void bind(const sched::StepPlan& plan, std::vector<RunResult>& lost);
  void measure(StepResult& result) const;
  void forward();
  void sample(std::vector<RunResult>& results);
  struct Worker {  // one a thread
    sampling::VerifyWorkspace workspace;
    sampling::VerifyResult verdict;
    std::vector<float*> logits;
    std::vector<const sampling::Distribution*> laws;
    std::vector<int32_t> golden;
    std::vector<const uint32_t*> masks;
  };
  void sample_run(const Bound& b, Worker& worker, RunResult& result);
  static void end_by_grammar(Sequence& s, RunResult& result);
  void force_outcome(const Sequence& s, int rows, std::vector<int32_t>& golden) const;
  void store_windows(std::vector<RunResult>& results);
  void report_prompt(const Bound& b, Worker& worker, RunResult& result);
  bool is_host() const { return parts_.device->is_host(); }
  void pick_drafts(int k, const TensorView& logits, int32_t* tokens);
  int32_t pick_draft(int k, float* logits, Sequence& s, sampling::Workspace& ws);
  void propose(std::vector<RunResult>& results);
  bool wants_drafts(const Sequence& s) const;
  static sampling::Stream block_of(const Sequence& s);

  Parts parts_;
  const ModelConfig& config_;
  std::unordered_map<int32_t, Sequence> sequences_;
  std::vector<Worker> workers_;
  std::optional<SimulatedDrafts> simulated_;

  // What the device writes, and the same where the host reads it (one memory on a host).
  DeviceBuffer memory_, host_memory_;
  TensorView logits_, host_logits_;  // [max_logit_rows, V]
  model::DraftOutput draft_output_;
  TensorView host_draft_logits_, host_draft_tokens_, host_confidence_;  // [S, V] of one draft, [n, S], [S, n]

  // Of the step in progress; reserved once.
  std::vector<Bound> bound_;
  std::vector<int32_t> ids_, logit_rows_, context_;
  std::vector<model::SequenceRows> rows_;
  std::vector<model::DraftSequence> draft_sequences_;
  std::vector<Bound*> drafting_;
};

}  // namespace deepinfer::engine
