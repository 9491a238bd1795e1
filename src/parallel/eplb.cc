#include "parallel/eplb.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace deepinfer::parallel {
namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

constexpr double kIndexBias =
    1e-4;  // makes equal loads distinct while replicas are chosen: the highest index is copied first

}  // namespace

ExpertMap ExpertMap::from_slots(std::vector<int> slots, int num_logical, int slots_per_rank) {
  ExpertMap map{num_logical, slots_per_rank, std::move(slots), std::vector<std::vector<int>>(at(num_logical))};
  for (std::size_t p = 0; p < map.physical_to_logical.size(); ++p)
    map.logical_to_physical[at(map.physical_to_logical[p])].push_back(static_cast<int>(p));
  return map;
}

int num_spare_slots(int num_routed, int minimum, int num_ranks) {
  int over = (num_routed + minimum) % num_ranks;
  return minimum + (over == 0 ? 0 : num_ranks - over);
}

std::vector<int> initial_slots(int num_routed, int num_spare) {
  std::vector<int> slots(at(num_routed + num_spare));
  for (int s = 0; s < num_routed + num_spare; ++s) slots[at(s)] = s < num_routed ? s : (s - num_routed) % num_routed;
  return slots;
}

std::vector<int> choose_replicas(const ExpertLoads& loads, int num_physical, std::vector<int>* order) {
  int num_logical = static_cast<int>(loads.front().size());
  std::vector<int> copies(at(num_logical), 1);
  order->clear();
  // Per step the two largest loads per replica decide what one more copy of any expert leaves as the peak.
  for (int spare = num_logical; spare < num_physical; ++spare) {
    std::vector<double> peaks(at(num_logical), 0.0);
    for (const auto& step : loads) {
      double first = -1.0, second = -1.0;
      int first_expert = -1;
      for (int e = 0; e < num_logical; ++e) {
        double each = (step[at(e)] + kIndexBias * e) / copies[at(e)];
        if (each > first) {
          second = std::exchange(first, each);
          first_expert = e;
        } else if (each > second) {
          second = each;
        }
      }
      for (int e = 0; e < num_logical; ++e) {
        double shared = (step[at(e)] + kIndexBias * e) / (copies[at(e)] + 1);
        peaks[at(e)] += std::max(shared, e == first_expert ? second : first);
      }
    }
    int best = static_cast<int>(std::min_element(peaks.begin(), peaks.end()) - peaks.begin());
    ++copies[at(best)];
    order->push_back(best);
  }
  return copies;
}

Result<ExpertMap> balance(const ExpertLoads& loads, int num_physical, int slots_per_rank) {
  if (loads.empty() || loads.front().empty()) return fail(Code::kInvalid, "expert loads are empty");
  int num_logical = static_cast<int>(loads.front().size());
  for (const auto& step : loads)
    if (static_cast<int>(step.size()) != num_logical)
      return fail(Code::kInvalid, "a step has loads of {} experts, others of {}", step.size(), num_logical);
  if (num_physical < num_logical) return fail(Code::kInvalid, "{} slots for {} experts", num_physical, num_logical);
  if (slots_per_rank <= 0 || num_physical % slots_per_rank != 0)
    return fail(Code::kInvalid, "{} slots do not divide into ranks of {}", num_physical, slots_per_rank);

  std::vector<int> expert_of_copy(at(num_logical));
  std::iota(expert_of_copy.begin(), expert_of_copy.end(), 0);
  std::vector<int> spares;
  std::vector<int> copies = choose_replicas(loads, num_physical, &spares);
  expert_of_copy.insert(expert_of_copy.end(), spares.begin(), spares.end());

  std::vector<double> total(at(num_logical), 0.0);
  for (const auto& step : loads)
    for (int e = 0; e < num_logical; ++e) total[at(e)] += step[at(e)] / copies[at(e)];
  std::vector<int> by_load(at(num_physical));
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](int a, int b) { return total[at(expert_of_copy[at(a)])] > total[at(expert_of_copy[at(b)])]; });

  int num_ranks = num_physical / slots_per_rank;
  std::vector<int> used(at(num_ranks), 0), slot_of_copy(at(num_physical));
  std::vector<std::vector<double>> rank_load(at(num_ranks), std::vector<double>(loads.size(), 0.0));
  std::vector<double> peak(loads.size(), 0.0);
  for (int copy : by_load) {
    int expert = expert_of_copy[at(copy)], best = -1;
    double best_growth = std::numeric_limits<double>::infinity();
    for (int r = 0; r < num_ranks; ++r) {
      if (used[at(r)] == slots_per_rank) continue;
      double growth = 0.0;
      for (std::size_t t = 0; t < loads.size(); ++t)
        growth += std::max(0.0, rank_load[at(r)][t] + loads[t][at(expert)] / copies[at(expert)] - peak[t]);
      if (growth < best_growth) best_growth = growth, best = r;
    }
    slot_of_copy[at(copy)] = best * slots_per_rank + used[at(best)]++;
    for (std::size_t t = 0; t < loads.size(); ++t) {
      rank_load[at(best)][t] += loads[t][at(expert)] / copies[at(expert)];
      peak[t] = std::max(peak[t], rank_load[at(best)][t]);
    }
  }
  ExpertMap map{num_logical, slots_per_rank, std::vector<int>(at(num_physical)),
                std::vector<std::vector<int>>(at(num_logical))};
  for (int copy = 0; copy < num_physical; ++copy) {
    map.physical_to_logical[at(slot_of_copy[at(copy)])] = expert_of_copy[at(copy)];
    map.logical_to_physical[at(expert_of_copy[at(copy)])].push_back(slot_of_copy[at(copy)]);
  }
  return map;
}

std::vector<std::vector<double>> rank_loads(const ExpertMap& map, const ExpertLoads& loads) {
  std::vector<std::vector<double>> out(at(map.num_ranks()), std::vector<double>(loads.size(), 0.0));
  for (std::size_t p = 0; p < map.physical_to_logical.size(); ++p) {
    int expert = map.physical_to_logical[p];
    auto copies = static_cast<double>(map.logical_to_physical[at(expert)].size());
    for (std::size_t t = 0; t < loads.size(); ++t) out[p / at(map.slots_per_rank)][t] += loads[t][at(expert)] / copies;
  }
  return out;
}

double sum_of_step_peaks(const ExpertMap& map, const ExpertLoads& loads) {
  auto by_rank = rank_loads(map, loads);
  double sum = 0.0;
  for (std::size_t t = 0; t < loads.size(); ++t) {
    double peak = 0.0;
    for (const auto& rank : by_rank) peak = std::max(peak, rank[t]);
    sum += peak;
  }
  return sum;
}

bool is_worth_moving(const ExpertMap& current, const ExpertMap& next, const ExpertLoads& loads, double ms_per_row,
                     double ms_per_move, int64_t horizon_steps) {
  double saved =
      (sum_of_step_peaks(current, loads) - sum_of_step_peaks(next, loads)) / static_cast<double>(loads.size());
  MovePlan moves = plan_moves(current.physical_to_logical, next.physical_to_logical, current.slots_per_rank);
  return saved * ms_per_row * static_cast<double>(horizon_steps) >
         ms_per_move * static_cast<double>(moves.remote.size());
}

ExpertRoute route_expert(std::span<const int> origin, std::span<const int> target, int slots_per_rank, int expert) {
  ExpertRoute route;
  int num_ranks = static_cast<int>(origin.size()) / slots_per_rank;
  for (int r = 0; r < num_ranks; ++r) {
    int has = -1;
    bool wants = false;
    for (int s = 0; s < slots_per_rank; ++s) {
      if (has < 0 && origin[at(r * slots_per_rank + s)] == expert) has = s;
      wants |= target[at(r * slots_per_rank + s)] == expert;
    }
    if (has >= 0) route.senders.push_back({r, has});
    if (wants && has < 0) route.receivers.push_back(r);
  }
  if (route.senders.empty()) return route;
  std::size_t senders = route.senders.size(), receivers = route.receivers.size(), each = receivers / senders;
  for (std::size_t i = 0; i < receivers; ++i) {
    std::size_t sender = i < each * senders ? i / each : i - each * senders;
    route.pairing.emplace_back(route.receivers[i], route.senders[sender].rank);
  }
  return route;
}

MovePlan plan_moves(std::span<const int> origin, std::span<const int> target, int slots_per_rank) {
  DI_CHECK(origin.size() == target.size(), "{} slots become {}", origin.size(), target.size());
  MovePlan plan;
  int num_slots = static_cast<int>(target.size());
  std::map<std::pair<int, int>, SlotRef> arrived;  // (expert, rank) -> where the transfer of this plan puts it
  std::map<int, ExpertRoute> routes;
  for (int p = 0; p < num_slots; ++p) {
    int expert = target[at(p)], rank = p / slots_per_rank;
    if (origin[at(p)] == expert) continue;
    SlotRef to{rank, p % slots_per_rank};
    auto [place, is_new] = routes.try_emplace(expert);
    if (is_new) place->second = route_expert(origin, target, slots_per_rank, expert);
    const ExpertRoute& route = place->second;
    DI_CHECK(!route.senders.empty(), "expert {} is nowhere", expert);
    auto local = std::ranges::find(route.senders, rank, &SlotRef::rank);
    if (local != route.senders.end()) {
      plan.local.push_back({expert, *local, to});
    } else if (auto here = arrived.find({expert, rank}); here != arrived.end()) {
      plan.local_after.push_back({expert, here->second, to});
    } else {
      int sender_rank = std::ranges::find(route.pairing, rank, &std::pair<int, int>::first)->second;
      plan.remote.push_back({expert, *std::ranges::find(route.senders, sender_rank, &SlotRef::rank), to});
      arrived[{expert, rank}] = to;
    }
  }
  return plan;
}

}  // namespace deepinfer::parallel
