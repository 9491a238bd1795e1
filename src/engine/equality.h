// The equality matrix: equal tokens and equal bits of log-probabilities whatever is done around a request.
//
//   rows a step x threads x neighbours x prefix (cold, first, deep hit, stored hit) x drafts x steps ahead x sequences
//   that run together
//
// Pairwise: every pair of values of two factors occurs in one of the runs. All of them: scripts/equality_matrix.sh.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"

namespace deepinfer::engine {

struct Combination {
  int rows = 0, threads = 1, neighbours = 0, prefix = 0, drafts = 0, async_steps = 1, sequences = 1;
};

// A factor's values, as the field takes them.
struct Factor {
  int Combination::* field;
  std::vector<int> values;
};

inline const std::vector<Factor>& factors() {
  static const std::vector<Factor> all = {
      {&Combination::rows, {64, 128, 512}}, {&Combination::threads, {1, 2}},   {&Combination::neighbours, {0, 12}},
      {&Combination::prefix, {0, 1, 2, 3}},  // off, published, deep and stored hit
      {&Combination::drafts, {0, 1, 2, 3}},  // none, fixed, scheduled, chosen live
      {&Combination::async_steps, {0, 1}},  {&Combination::sequences, {2, 8}},
  };
  return all;
}

inline std::vector<Combination> every_combination() {
  std::vector<Combination> list(1);
  for (const Factor& f : factors()) {
    std::vector<Combination> longer;
    for (const Combination& c : list) {
      for (int value : f.values) {
        longer.push_back(c);
        longer.back().*f.field = value;
      }
    }
    list = std::move(longer);
  }
  return list;
}

// Greedily the combination that covers most pairs not covered yet.
inline std::vector<Combination> pairwise() {
  using Pair = std::array<int, 4>;
  auto pairs_of = [](const Combination& c) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < factors().size(); ++a) {
      for (size_t b = a + 1; b < factors().size(); ++b)
        pairs.push_back({static_cast<int>(a), c.*factors()[a].field, static_cast<int>(b), c.*factors()[b].field});
    }
    return pairs;
  };
  std::vector<Combination> all = every_combination(), chosen;
  std::set<Pair> open;
  for (const Combination& c : all) {
    for (const Pair& p : pairs_of(c)) open.insert(p);
  }
  while (!open.empty()) {
    auto gain = [&](const Combination& c) {
      return std::ranges::count_if(pairs_of(c), [&](const Pair& p) { return open.contains(p); });
    };
    auto best = std::ranges::max_element(all, {}, gain);
    chosen.push_back(*best);
    for (const Pair& p : pairs_of(*best)) open.erase(p);
  }
  return chosen;
}

// What a request gave, for comparison bit by bit.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<std::optional<float>> logprobs;
  bool operator==(const Answer&) const = default;
};

inline std::vector<Request> requests(CacheMode mode) {
  std::mt19937 rng(17);
  std::vector<Request> list;
  for (int i = 0; i < 6; ++i) {
    Request r;
    int length = i < 3 ? 700 + 50 * i : 3 + 60 * i;  // the long ones reach past a deep replay
    for (int t = 0; t < length; ++t) r.prompt.push_back(3 + static_cast<int32_t>(rng() % 490));
    r.sampling.max_tokens = 14;
    r.sampling.temperature = i % 2 == 0 ? 0.0 : 1.0;
    r.sampling.seed = i % 2 == 0 ? std::nullopt : std::optional<uint64_t>(40 + i);
    r.sampling.n = i == 4 ? 3 : 1;
    r.sampling.logprobs = true;
    r.sampling.ignore_eos = true;
    r.sampling.cache_mode = mode;
    list.push_back(std::move(r));
  }
  return list;
}

inline std::vector<Answer> run(const Combination& c, const std::string& backend) {
  Settings settings;
  settings.async_steps = c.async_steps == 1;
  settings.stored_windows = c.prefix == 3 ? 32 : 0;
  settings.varlen = c.drafts == 1 ? 0 : c.drafts == 2 ? 1 : -1;
  EngineOptions options{.model = DI_SOURCE_DIR "/tests/golden/random-small/checkpoint",
                        .backend = backend,
                        .num_threads = c.threads,
                        .max_num_seqs = c.sequences,
                        .max_num_batched_tokens = c.rows,
                        .num_drafts = c.drafts == 0 ? 0 : -1};
  auto engine = EngineImpl::create(options, settings);
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return {};
  CacheMode mode = c.prefix == 0 ? CacheMode::kOff : CacheMode::kExact;
  if (c.prefix >= 2) (*engine)->generate(requests(mode), {});  // fills the cache
  std::vector<Request> list = requests(mode);
  size_t wanted = list.size();
  std::mt19937 rng(static_cast<uint32_t>(c.rows + c.drafts));
  for (int i = 0; i < c.neighbours; ++i) {
    Request r = list[rng() % wanted];
    r.prompt.resize(1 + rng() % 300, 9);
    r.sampling.seed = rng();
    list.push_back(std::move(r));
  }
  std::vector<Answer> answers;
  int64_t cached = 0, replayed = 0;
  auto outputs = (*engine)->generate(std::move(list), {});
  outputs.resize(wanted);
  for (const RequestOutput& o : outputs) {
    for (const CompletionOutput& choice : o.outputs) {
      EXPECT_EQ(choice.error, "");
      answers.push_back({choice.token_ids, choice.logprobs});
      cached += choice.usage.cached_tokens;
      replayed += choice.usage.replayed_tokens;
    }
  }
  if (c.prefix >= 2) {
    EXPECT_GT(cached, 0);
    EXPECT_EQ(replayed > 0, c.prefix == 2);
  }
  return answers;
}

// Where two lists of answers part first.
inline std::string difference(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  if (got.size() != expected.size()) return fmt::format("{} answers, not {}", got.size(), expected.size());
  for (size_t a = 0; a < got.size(); ++a) {
    if (got[a] == expected[a]) continue;
    for (size_t t = 0; t < expected[a].tokens.size(); ++t) {
      if (t >= got[a].tokens.size() || got[a].tokens[t] != expected[a].tokens[t])
        return fmt::format("answer {}, token {}", a, t);
      if (got[a].logprobs[t] != expected[a].logprobs[t])
        return fmt::format("answer {}, log-probability {}: {} and {}", a, t, *got[a].logprobs[t],
                           *expected[a].logprobs[t]);
    }
    return fmt::format("answer {} is longer", a);
  }
  return "";
}

inline void expect_equal(const std::vector<Combination>& list, const std::string& backend) {
  const std::vector<Answer> expected = run({.rows = 512}, backend);
  for (const Combination& c : list) {
    EXPECT_EQ(difference(run(c, backend), expected), "")
        << c.rows << " rows a step, " << c.threads << " threads, " << c.neighbours << " neighbours, prefix " << c.prefix
        << ", drafts " << c.drafts << ", async " << c.async_steps << ", " << c.sequences << " together";
  }
}

// In pieces, so that each is a matter of minutes.
constexpr int kEqualityPieces = 24;

inline std::vector<Combination> piece_of_all(int piece) {
  std::vector<Combination> all = every_combination(), mine;
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i % kEqualityPieces) == piece) mine.push_back(all[i]);
  }
  return mine;
}

}  // namespace deepinfer::engine
