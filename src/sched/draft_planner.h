// Chooses, step by step, among no drafts, every fixed width 1..n, and confidence-scheduled verification; then how many
// drafts each sequence verifies.
//
//   rate(off)        R / T(R)                                   the draft pass itself is saved
//   rate(width w)    (R + sum of the first w survivals, averaged over rounds) / (T(R (1 + w)) + draft time)
//   rate(scheduled)  max over B of tau(B) / (T(B) + draft time + overhead of the variable path)
//
// The rates of a few sequences jump from round to round, so small batches are judged by an average over steps (of rates
// over that of off, which batch sizes and contexts do not move much). The current choice is left when another promises
// more by a margin: 1 % towards `scheduled`, whose path is the more complex one, none away from it, little between
// widths. While drafts are off nothing is known of them, so that averages age; every `probe_interval` steps one step
// drafts again.
//
// A single round's survivals say little about the next round of the same sequence, so widths are judged by averages
// over its rounds, and the promise of `scheduled`, which needs their spread, is corrected by what its steps really
// emitted.
//
// Losslessness: the total and the choice use the survivals that were known a round before the drafts at hand; only the
// split ranks by the newest ones (verification_budget.h). Sequences with common noise or arg-max may be judged by the
// newest. Everything is a function of past observations: no clock, no randomness. The scheduler thread owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "sched/cost_model.h"
#include "sched/verification_budget.h"

namespace deepinfer::sched {

enum class DraftMode : uint8_t {
  kAuto,       // chosen live; DEEPINFER_ENABLE_MTP_VARLEN unset
  kFixed,      // all drafts; =0
  kScheduled,  // =1
};

struct DraftConfig {
  int max_draft = 5;
  DraftMode mode = DraftMode::kAuto;
  double bytes_per_token = 0.0;     // of keys that a row reads, for the cost of context
  double hysteresis = 0.01;         // towards `scheduled`
  double width_hysteresis = 0.002;  // between widths and off
  int probe_interval = 64;
  int explore_interval = 160;  // 0: never
};

struct DraftQuery {
  int32_t seq = 0;                    // its id
  int limit = 0;                      // drafts at hand, at most max_draft
  std::span<const float> survivals;   // empty: unknown
  bool is_old = false;                // the survivals are those of the round before these drafts
  int64_t length = 0;                 // context
  bool is_draft_independent = false;  // common noise or arg-max: any rule is lossless
};

struct DraftDecision {
  enum class Kind : uint8_t { kOff, kFixed, kScheduled };
  Kind kind = Kind::kFixed;
  int width = 0;  // kFixed: drafts a sequence
  bool is_exploring = false;
  bool wants_drafts = true;  // whether this step should draft for the next
  int total_rows = 0;
  double tokens_per_ms = 0.0;  // predicted for the choice
  double expected_tokens = 0;  // of a scheduled step; 0: another kind
};

class DraftPlanner {
 public:
  // `cost` outlives the planner and is fed by its owner with measured steps.
  DraftPlanner(const DraftConfig& config, const CostModel& cost);

  // drafts[i]: how many drafts sequence i verifies, 0 .. limit.
  DraftDecision plan(std::span<const DraftQuery> queries, std::span<int> drafts);

  // What was measured of a step: time of verification and of the draft pass, and the extra time of the variable path.
  void observe_sampler(int num_seqs, double ms) { sampler_.observe(num_seqs, ms); }
  void observe_draft_pass(int num_seqs, double ms) { draft_pass_.observe(num_seqs, ms); }
  // Tokens that a step emitted whose decision expected so many.
  void observe_emitted(double expected_tokens, int tokens);
  void observe_overhead(double ms) { overhead_ms_ += 0.05 * (ms - overhead_ms_); }
  void forget(int32_t seq) { known_.erase(seq); }

 private:
  struct Options {
    std::vector<double> rates;  // off, width 1..n, scheduled
    Budget scheduled;
  };
  Survivals older_survivals(std::span<const DraftQuery> queries) const;
  void remember(std::span<const DraftQuery> queries);
  const std::vector<double>& average_of(int32_t seq) const;
  Options rate_all(std::span<const DraftQuery> queries, const Survivals& older);
  int choose(const Options& options, int num_seqs);
  bool explores_at(int64_t step) const;

  DraftConfig config_;
  const CostModel& cost_;
  SamplerTime sampler_, draft_pass_;
  double overhead_ms_ = 0.0;
  struct Known {
    std::vector<float> newest;    // survivals of the sequence's last round
    std::vector<double> average;  // over its rounds
  };
  std::map<int32_t, Known> known_;
  std::vector<double> average_;  // survivals by position, over all sequences: for those without values
  bool has_average_ = false;
  int choice_ = -1;             // index into Options::rates; -1: none yet
  std::vector<double> smooth_;  // rates over that of off, averaged over steps of small batches
  bool smooth_is_informed_ = false;
  double scheduled_gain_ = 0.0;   // rate(scheduled) / rate(off) when drafts were last at hand; 0: never
  double scheduled_truth_ = 1.0;  // tokens that scheduled steps emitted over those expected
  int steps_since_drafts_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace deepinfer::sched
