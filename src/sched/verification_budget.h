// How many drafts to verify: the search for the most tokens per unit of time, and the split among sequences.
//
//   S        survivals of all drafts, sorted descending
//   tau(B)   R + sum of the B - R largest survivals: tokens that a step of B rows is expected to emit
//   total    argmax over B = R .. R + number of drafts of tau(B) / cost(B), the smallest B on ties
//   split    one row a sequence, and one for each of the total - R best survivals; ties to the lower flat index
//
// The law of the output is untouched as long as (spec: speculative.md 5)
//   - the total comes from survivals older than the drafts it may cut off (or the request uses common noise or is
//   greedy)
//   - survivals never increase along a sequence (they are products of confidences clamped to [0, 1])
//   - ties are resolved by position, and nothing here reads a draft's own probability or id
// A survival of 0 after a stop token is allowed: the sequence has ended.
//
// Pure functions; `Survivals` is a flat table [num_seqs, max_draft].
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace deepinfer::sched {

// Rows of a captured step size, and its time. Steps take the smallest tier that holds their rows.
struct Tier {
  int rows;
  double ms;
};

struct Survivals {
  int num_seqs = 0, max_draft = 0;
  std::vector<double> values;  // [num_seqs, max_draft], non-increasing along a sequence

  static Survivals zeros(int num_seqs, int max_draft);
  std::span<double> of(int seq) {
    return {values.data() + static_cast<std::ptrdiff_t>(seq) * max_draft, static_cast<std::size_t>(max_draft)};
  }
  std::span<const double> of(int seq) const {
    return {values.data() + static_cast<std::ptrdiff_t>(seq) * max_draft, static_cast<std::size_t>(max_draft)};
  }
  // Cumulative products of confidences clamped to [0, 1] (NaN counts as 0).
  void set_from_confidences(int seq, std::span<const float> confidences);
  // A sequence that has drafts but no known confidences is taken to accept them all, one without drafts none.
  void set_unknown(int seq, bool has_draft);
};

struct Budget {
  int total_rows = 0;
  double tokens = 0.0;                        // expected, tau(total_rows)
  double tokens_per_ms = 0.0;                 // 0 without a cost
  std::vector<std::pair<int, double>> trace;  // (B, tau / T) of every B that was possible, if asked for
};

// cost[b - num_seqs] is the time of a step of b rows, for b up to num_seqs + drafts; a value <= 0 says that b is not
// possible. An empty table means that nothing is known: every draft is verified.
Budget choose_rows(const Survivals& s, std::span<const double> cost, bool wants_trace = false);

// cost table of a staircase: T(B) = ms[g] + max(0, slope) x g + fixed, g the smallest tier >= B.
std::vector<double> staircase_cost(std::span<const Tier> tiers, double slope_ms_per_row, double fixed_ms, int num_seqs,
                                   int max_draft);

// Rows of each sequence, 1 .. 1 + max_draft, that add up to total_rows.
std::vector<int> split_rows(const Survivals& s, int total_rows);

// The split when the survivals were produced one step earlier, in another batch: remap[i] is the sequence's index
// there, -1 (survival 0) if it was not in it. What the device kernel computes.
std::vector<int> reallocate_rows(std::span<const int> remap, const Survivals& previous, int total_rows);

// The rule for survivals of the current round (spec 4.2): walk the merged list and stop at the first drop of tau / T,
// so that only quantities of already admitted prefixes are looked at. Misses optima behind a step of the staircase.
std::vector<int> early_stop_rows(const Survivals& s, std::span<const double> cost);

// ---- across data-parallel ranks
// -------------------------------------------------------------------------------------- With expert exchange every
// layer ends when the slowest rank arrives, so a step costs what its largest tier costs.

// Expected tokens of one rank for every tier (0 where the tier is smaller than its number of sequences): the vector
// that ranks add up in one all-reduce, followed by one entry a tier that counts the ranks which cannot run it.
std::vector<double> tier_tokens(const Survivals& s, std::span<const Tier> tiers);
// Index of the tier with the most tokens per time, given the sum of the vectors above; -1 if some rank fits no tier.
int choose_joint_tier(std::span<const double> summed, std::span<const Tier> tiers);
// Rows that a rank runs inside a tier: all it can use.
int rows_within(const Survivals& s, int tier_rows);

}  // namespace deepinfer::sched
