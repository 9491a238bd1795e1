// Sizes and bounds that the scheduler and the memory plan need, in closed form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace deepinfer::sched {

// sum over t = 1 .. n of floor(t / ratio), each term at most `cap` (0: no cap).
constexpr int64_t entries_seen(int64_t n, int64_t ratio, int64_t cap = 0) {
  int64_t below = cap > 0 ? std::min(n, ratio * cap) : n;
  int64_t b = below / ratio;
  return b * (below + 1) - ratio * b * (b + 1) / 2 + (n - below) * cap;
}
// (query, entry) pairs of rows at positions [begin, end) with one entry per `ratio` tokens: the attention work of a
// chunk.
constexpr int64_t attention_pairs(int64_t begin, int64_t end, int64_t ratio, int64_t cap) {
  return entries_seen(end, ratio, cap) - entries_seen(begin, ratio, cap);
}

// Rows of every position-indexed table: drafts of the last step, a step in flight, and the drafts it proposes.
constexpr int64_t position_bound(int64_t context_length, int max_draft, bool is_asynchronous) {
  return context_length + max_draft + (is_asynchronous ? max_draft + 1 : 0) + max_draft;
}

// The kind of the next step where expert exchange forces one kind on all ranks (one engine alone mixes both in each
// step): every 100 decode steps one rank that wants to prefill is enough, every 70 all of them must want it.
// `decode_steps` counts since the last prompt step and is equal on all ranks.
constexpr bool votes_for_prefill(int64_t decode_steps, std::span<const bool> wants, int64_t all_interval = 70,
                                 int64_t any_interval = 100) {
  if (decode_steps != 0 && decode_steps % any_interval == 0)
    return std::ranges::any_of(wants, [](bool w) { return w; });
  return decode_steps % all_interval == 0 && std::ranges::all_of(wants, [](bool w) { return w; });
}

}  // namespace deepinfer::sched
