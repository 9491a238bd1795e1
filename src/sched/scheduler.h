// Continuous batching: which tokens run in the next step.
//
//   waiting --admit--> running (prefill chunks, then decode) --finish--> gone
//      ^                  |
//      +---- preempt -----+        (tokens are kept; keys are computed again, from the prefix cache where possible)
//
//   Every step mixes decode rows of all running sequences with prefill chunks within a budget of rows and, if given, of
//   time. Admission happens at every step. Sequences are ranked by (priority raised by waiting, the tenant's share,
//   arrival); blocks and slots of a sequence are only ever taken for one of a higher rank, so the highest always
//   finishes and nothing starves. A request that could not finish with the whole pool is refused at the door.
//
//   Sequences that regain windows exactly also store them, at the boundaries where a hit is likely to end: where a
//   replay ended (two prompts part there), the last one at which a hit of the same prompt can end, and the last ones of
//   the output at which a hit of its continuation can.
//
//   plan() may run one step ahead of commit(): lengths of decoding sequences are then upper bounds.
//
// No clock, no device, no thread: time comes in as an argument. The engine's scheduler thread owns it.
#pragma once

#include <climits>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/block_ledger.h"
#include "sched/draft_planner.h"
#include "sched/plan.h"
#include "sched/replay_plan.h"

namespace deepinfer::sched {

struct SchedulerConfig {
  int max_rows = 512;        // rows a step
  int max_logit_rows = 512;  // rows of a step whose logits are wanted
  int max_running = 16;      // sequences that run together
  int num_slots = 20;        // private state slots, ids 1 .. num_slots
  int num_drafts = 0;        // drafts a sequence verifies at most
  int64_t max_length = 0;    // context length: prompt and output
  double max_step_us = 0;    // prefill chunks shrink so that a step with decode rows stays below this; 0: no bound
  // Rows that run again on a hit, to regain the windows before it (replay_plan.h).
  int64_t bounded_replay = 128;   // one window
  int64_t producer_replay = 128;  // exact, of the producer layers: enough with truncation
  int64_t full_replay = 128;      // exact, of all layers
  // Stored windows cover all layers, so that sequences without truncation can start from them too.
  bool stores_all_layers = false;
  double ageing_us = 1e6;  // waiting that is worth one point of priority
};

enum class ReuseMode : uint8_t { kBounded, kExact, kOff };

struct NewSequence {
  std::vector<int32_t> tokens;  // the prompt
  int64_t max_total = 0;        // prompt and output tokens at most
  int priority = 0;
  std::string tenant;
  std::string share_key;  // blocks are shared between equal keys only
  int64_t arrival_us = 0;
  std::optional<int64_t> deadline_us;
  ReuseMode reuse = ReuseMode::kBounded;
  int64_t keep_tokens = 0;            // prompt rows that the consumer layers keep; 0: all (no truncation)
  int max_drafts = -1;                // -1: the configuration's
  bool is_draft_independent = false;  // the output does not depend on which drafts are verified
  bool all_logits = false;            // logits of every prompt row (prompt log-probabilities): no truncation, no reuse
  SeqId leader = kNoSequence;         // fork of this sequence's prompt: waits for its prefill, then copies its state
};

// What the executor reports of one run, after the engine has applied the stop rules.
struct RunCommit {
  SeqId seq = kNoSequence;
  uint32_t epoch = 0;
  int64_t computed = 0;          // prefill: positions computed so far, i.e. the end of the chunk
  std::vector<int32_t> tokens;   // tokens to append (accepted drafts and the final one); empty for inner chunks
  int32_t planned_rows = 0;      // of the decode run, as planned
  std::vector<float> survivals;  // of the new drafts, for the next budget
  bool stored_windows = false;   // the run passed windows_at and copied
  bool has_end_token = false;    // the last of `tokens` came without a row, and ends the sequence
  bool finished = false;         // the sequence ends with these tokens
};

enum class EndReason : uint8_t { kCancelled, kDeadline };

struct SequenceStats {
  int64_t cached_tokens = 0, replayed_tokens = 0;
  bool from_stored_windows = false;         // its last start
  MissCause miss_cause = MissCause::kNone;  // of its first start; a fork's is kNone
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockLedger& blocks);
  ~Scheduler();

  // kExhausted or kInvalid with both numbers if the sequence could never run.
  Result<SeqId> add(NewSequence sequence);
  // Takes effect at the next plan(), whatever the state; the sequence is then in ended().
  void cancel(SeqId seq);

  // The next step. Empty when nothing can run; call again after a commit, an arrival or a deadline.
  StepPlan plan(int64_t now_us);
  // Sequences that plan() ended by itself (cancelled or late); each exactly once.
  std::vector<std::pair<SeqId, EndReason>> take_ended();

  // False if the result is void (the sequence ended or was preempted meanwhile): its tokens must not be published.
  bool commit(const RunCommit& result);
  // A step ran: feeds the time model that bounds prefill chunks.
  void observe(int num_rows, double step_us);

  bool has_work() const;
  int num_waiting() const;
  int num_running() const;
  int num_free_slots() const { return static_cast<int>(free_slots_.size()); }
  std::optional<int64_t> next_deadline_us() const;
  SequenceStats stats(SeqId seq) const;
  std::span<const int32_t> tokens(SeqId seq) const;

  // Decides how many drafts each decoding sequence verifies, and whether the step drafts for the next one
  // (DraftPlanner::plan). Default: all, always.
  using DraftPolicy = std::function<DraftDecision(std::span<const DraftQuery>, std::span<int> drafts)>;
  void set_draft_policy(DraftPolicy policy) { draft_policy_ = std::move(policy); }

  // Drafts that a sequence verifies at most in a step whose rows do not suffice for the prompts at hand.
  void limit_crowded_drafts(int num_drafts) { crowded_drafts_ = num_drafts; }

  // Every block and slot is accounted for; DI_CHECKs otherwise. For tests and debug builds.
  void check_invariants() const;

 private:
  struct Sequence;
  enum class Admission : uint8_t { kStarted, kLater, kNoRoom };
  // Rank order, highest first. Priority raised by waiting is the same as arrival lowered by priority, so the order of
  // two sequences never changes: rank = priority - arrival / ageing.
  struct Rank {
    double value = 0;
    int64_t arrival_us = 0;
    int32_t id = 0;
    bool operator<(const Rank& o) const {
      if (value != o.value) return value > o.value;
      return arrival_us != o.arrival_us ? arrival_us < o.arrival_us : id < o.id;
    }
  };
  struct Tenant {
    std::map<Rank, Sequence*> waiting;
    double served_rows = 0;
  };

  Sequence& at(SeqId seq);
  const Sequence& at(SeqId seq) const;

  void end_cancelled_and_late(int64_t now_us);
  void plan_decodes(StepPlan& plan);
  bool is_crowded(std::span<const DraftQuery> decodes) const;
  void plan_prefills(StepPlan& plan);
  std::vector<Sequence*> waiting_in_order();
  Admission admit(Sequence& s, StepPlan& plan);
  int64_t tokens_before(const StepPlan& plan, const Sequence& s) const;
  Admission start_fork(Sequence& s, Sequence& leader, StepPlan& plan);
  std::pair<PrefixHit, HitPlan> find_hit(Sequence& s);
  void start_running(Sequence& s);
  void add_chunk(Sequence& s, int rows, StepPlan& plan);
  bool reserve(Sequence& s, int64_t end_pos, std::vector<int32_t>& appended, StepPlan& plan);
  bool preempt_below(const Sequence& s, StepPlan& plan, int max_priority = INT_MAX);
  void publish_computed(Sequence& s);
  // Stored windows.
  bool regains_exactly(const Sequence& s) const;
  int64_t prompt_boundary(const Sequence& s) const;
  void plan_windows(Sequence& s, int64_t boundary, PlannedRun& run);
  void settle_windows(Sequence& s, bool is_stored);
  void release(Sequence& s);
  void forget(Sequence& s);
  int64_t prefill_rows_left(const StepPlan& plan, const Sequence& s) const;

  SchedulerConfig config_;
  BlockLedger& blocks_;
  std::map<int32_t, std::unique_ptr<Sequence>> sequences_;
  std::map<Rank, Sequence*> running_;
  std::map<std::string, Tenant> tenants_;
  std::vector<int32_t> free_slots_;
  std::vector<SeqId> cancelled_;
  std::map<std::pair<int64_t, int32_t>, Sequence*> deadlines_;
  std::vector<std::pair<SeqId, EndReason>> ended_;
  std::vector<PlannedEnd> pending_ends_;  // for the next plan
  DraftPolicy draft_policy_;
  int crowded_drafts_ = INT_MAX;
  int32_t next_id_ = 0;
  uint64_t next_step_ = 0;
  double us_fixed_ = 0, us_per_row_ = 0;  // live fit of step time = fixed + rows x per_row
};

}  // namespace deepinfer::sched
