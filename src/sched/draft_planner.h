// Chooses, step by step, among no drafts, every fixed width 1..n, and confidence-scheduled verification; then how many
// drafts each sequence verifies.
//
//   rate(off)        R / T(R)                                   the draft pass itself is saved
//   rate(width w)    (R + sum of the first w survivals) / (T(R (1 + w)) + draft time)
//   rate(scheduled)  max over B of tau(B) / (T(B) + draft time)       any number of rows takes the same path
//
// What drafts bring is averaged over rounds, fewer rounds the larger the batch: a single round of few sequences says
// little about the next. The average is of the whole curve tau(B), each round's drafts taken in their own order, so for
// one sequence `scheduled` promises no more than the best width. It starts from a guess, so that one bad round decides
// nothing. While drafts are off the averages drift to those of a long time, since a bad stretch does not last.
//
// The current choice is left when another promises more by a margin: half a percent towards `scheduled`, whose promise
// is the best of many, none away from it, little between widths. At the start every draft is verified.
//
// Two things are tried although another choice promises more. Steps of a size that was never measured, when their cost,
// optimistically, could make them the better choice. And all drafts, after a while in which not all were verified (from
// `off` the best option that has drafts): what is not verified gets no label, so a low opinion of it would never be
// corrected. What a try is expected to lose must fit into a share of the time that has passed: trying costs at most
// `explore_share`, in short runs too.
//
// Losslessness: the total and the choice use the survivals that were known a round before the drafts at hand; only the
// split ranks by the newest ones (verification_budget.h). Sequences with common noise or arg-max may be judged by the
// newest. Everything is a function of past observations: no clock, no randomness. The scheduler thread owns it.
#pragma once

#include <cstdint>
#include <map>
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
  double hysteresis = 0.005;        // towards `scheduled`
  double width_hysteresis = 0.002;  // between widths and off
  double explore_share = 0.0045;    // of the time; 0: never
  double draft_share = 0.0;         // of a step of as many rows that a draft pass takes, until one was measured
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
  int width = 0;              // kFixed: drafts a sequence
  bool is_exploring = false;  // a try
  bool wants_drafts = true;   // whether this step should draft for the next
  int total_rows = 0;
  double tokens_per_ms = 0.0;  // predicted for the choice
};

class DraftPlanner {
 public:
  // `cost` outlives the planner and is fed by its owner with measured steps.
  DraftPlanner(const DraftConfig& config, const CostModel& cost);

  // drafts[i]: how many drafts sequence i verifies, 0 .. limit.
  DraftDecision plan(std::span<const DraftQuery> queries, std::span<int> drafts);

  // What was measured of a step: time of verification and of the draft pass.
  void observe_sampler(int num_seqs, double ms) { sampler_.observe(num_seqs, ms); }
  void observe_draft_pass(int num_seqs, double ms) { draft_pass_.observe(num_seqs, ms); }
  void forget(int32_t seq) { newest_.erase(seq); }

 private:
  struct Option {
    int rows = 0;
    double tokens = 0.0, ms = 0.0;
    double rate() const { return ms > 0.0 ? tokens / ms : 0.0; }
  };
  // What drafts bring, averaged over rounds of about so many sequences.
  struct Gain {
    int num_seqs = 0;
    std::vector<double> best;         // [num_seqs x n + 1] tokens that so many drafts add, the best ones of the step
    std::vector<double> by_position;  // [n] survival

    static Gain guess(int n);  // of one sequence
    void resize(int new_num_seqs, int n);
    void approach(const Gain& other, double share);
  };
  Survivals older_survivals(std::span<const DraftQuery> queries) const;
  void learn_round(std::span<const DraftQuery> queries, const Survivals& older);
  std::vector<Option> rate_all(std::span<const DraftQuery> queries) const;
  Option best_schedule(int num_seqs, int most_rows, std::span<const double> cost) const;
  int choose(std::span<const Option> options);
  int explore(std::span<const Option> options, int chosen, bool has_drafts);
  static int best_with_drafts(std::span<const Option> options);
  void split(std::span<const DraftQuery> queries, const Survivals& older, int total_rows, std::span<int> drafts) const;
  void remember(std::span<const DraftQuery> queries);

  DraftConfig config_;
  const CostModel& cost_;
  SamplerTime sampler_, draft_pass_{1};           // what a draft pass costs must not be forgotten in the first choices
  std::map<int32_t, std::vector<float>> newest_;  // survivals of each sequence's last round
  Gain gain_, usual_;                             // lately, and over a long time
  int num_rounds_ = 0, missed_rounds_ = 0;        // in the averages; steps since without drafts
  int choice_ = -1;                               // off, width 1..n, scheduled; -1: none yet
  double elapsed_ms_ = 0.0, explored_ms_ = 0.0;   // predicted: of all steps; lost by trying
  int steps_partial_ = 0;                         // since all drafts were verified, or a try
};

}  // namespace deepinfer::sched
