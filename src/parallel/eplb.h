// Expert load balancing: which expert gets a spare slot, which rank holds which slot, and what has to move.
//
//   logical expert   0 .. E-1, what the router chooses
//   physical slot    0 .. P-1, rank = slot / slots_per_rank; P - E slots are spare and hold second copies
//
//   replicas    slot by slot to the expert that lowers the sum over steps of the largest load per replica the most
//   placement   copies by falling load, each to the rank where the sum over steps of the peak rank load grows least
//   moves       copies inside a rank first; then each missing (expert, rank) once, senders sharing the receivers
//
// Pure functions on counts; nothing here knows of devices (spec: runtime.md 6, EPLB). A row's experts are added in
// ascending logical id, so no choice made here changes a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace deepinfer::parallel {

// Rows that each logical expert received, one list a step of the window.
using ExpertLoads = std::vector<std::vector<double>>;  // [steps][E]

struct ExpertMap {
  int num_logical = 0, slots_per_rank = 0;
  std::vector<int> physical_to_logical;               // [P]
  std::vector<std::vector<int>> logical_to_physical;  // [E], in the order in which copies were made

  static ExpertMap from_slots(std::vector<int> physical_to_logical, int num_logical, int slots_per_rank);
  int num_ranks() const { return static_cast<int>(physical_to_logical.size()) / slots_per_rank; }
};

// Spare slots: at least `minimum`, and as many more as make the slots divide the ranks.
int num_spare_slots(int num_routed, int minimum, int num_ranks);
// Slot s below num_routed holds expert s, spare k expert k mod num_routed.
std::vector<int> initial_slots(int num_routed, int num_spare);

// Copies of each expert for `num_physical` slots, and in `order` the experts that received the spare slots, one by one.
std::vector<int> choose_replicas(const ExpertLoads& loads, int num_physical, std::vector<int>* order);
// kInvalid unless there is a slot for every expert and the slots divide into ranks.
Result<ExpertMap> balance(const ExpertLoads& loads, int num_physical, int slots_per_rank);

// Load of each rank in each step, [ranks][steps], replicas sharing an expert's rows evenly; and the sum of step peaks.
std::vector<std::vector<double>> rank_loads(const ExpertMap& map, const ExpertLoads& loads);
double sum_of_step_peaks(const ExpertMap& map, const ExpertLoads& loads);

// Whether a new map is worth its moves: predicted time saved over `horizon_steps` against the time the moves take.
bool is_worth_moving(const ExpertMap& current, const ExpertMap& next, const ExpertLoads& loads, double ms_per_row,
                     double ms_per_move, int64_t horizon_steps);

struct SlotRef {
  int rank = 0, slot = 0;  // slot within the rank
  bool operator==(const SlotRef&) const = default;
};
struct Transfer {
  int expert = 0;
  SlotRef from, to;
};
// How one expert reaches the ranks that need it: who has it, who lacks it, and which sender serves which receiver.
struct ExpertRoute {
  std::vector<SlotRef> senders;
  std::vector<int> receivers;                // ranks
  std::vector<std::pair<int, int>> pairing;  // (receiver rank, sender rank)
};
ExpertRoute route_expert(std::span<const int> origin, std::span<const int> target, int slots_per_rank, int expert);

// Everything that turns `origin` into `target`: first copies inside ranks, then one transfer a (expert, rank), then
// copies of what just arrived. Sources are read in the origin layout, so transfers go to a second buffer or in this
// order with care for overwritten slots: a slot is overwritten only by the transfer that names it.
struct MovePlan {
  std::vector<Transfer> local, remote, local_after;
};
MovePlan plan_moves(std::span<const int> origin, std::span<const int> target, int slots_per_rank);

}  // namespace deepinfer::parallel
