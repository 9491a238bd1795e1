#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Naive {
  std::vector<int32_t> ids;  // ascending
  std::vector<double> probabilities;
};

// The table of sampling.md 2 by sorting, on the library's weights (their accuracy has its own test).
Naive naive_law(std::vector<float> z, const RowParams& p, const uint32_t* mask) {
  int vocab = static_cast<int>(z.size());
  std::vector<int32_t> order;
  for (int v = 0; v < vocab; ++v)
    if ((mask == nullptr || (mask[v >> 5] >> (v & 31) & 1)) && z[static_cast<std::size_t>(v)] > -kInf)
      order.push_back(v);
  auto logit = [&](int32_t v) { return z[static_cast<std::size_t>(v)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (p.is_greedy) order.resize(1);
  float max = logit(order[0]);
  auto mass = [&](int32_t v) { return mass_of(weight_of(logit(v), max, p.inverse_temperature)); };
  uint64_t total = 0, before = 0;
  for (int32_t v : order) total += mass(v);
  std::vector<int32_t> kept;
  for (int32_t v : order) {
    if (p.top_k > 0 && static_cast<int>(kept.size()) >= p.top_k) break;
    if (p.top_p < 1 && before > static_cast<uint64_t>(p.top_p * static_cast<double>(total))) break;
    if (p.min_p > 0 && weight_of(logit(v), max, p.inverse_temperature) < p.min_p) break;
    before += mass(v);
    kept.push_back(v);
  }
  std::sort(kept.begin(), kept.end());
  Naive law;
  for (int32_t v : kept) {
    if (mass(v) == 0) continue;
    law.ids.push_back(v);
    law.probabilities.push_back(static_cast<double>(mass(v)) / static_cast<double>(before));
  }
  return law;
}

Naive law_of(const Distribution& d) {
  Naive law;
  d.each([&](int32_t id, double p) { law.ids.push_back(id), law.probabilities.push_back(p); });
  return law;
}

RowParams row_params(void (*change)(SamplingParams&)) {
  SamplingParams p;
  change(p);
  return make_row_params(p, {.eos_id = 2});
}

TEST(Sampler, FiltersEqualASortedReference) {
  std::mt19937 rng(3);
  Workspace ws;
  Distribution law;
  for (int round = 0; round < 600; ++round) {
    int vocab = 1 + static_cast<int>(rng() % (round % 10 == 0 ? 5000 : 300));
    std::normal_distribution<float> normal(0, round % 2 ? 4.0f : 0.3f);
    std::vector<float> z(static_cast<std::size_t>(vocab));
    for (float& v : z) v = round % 3 == 0 ? std::round(normal(rng)) : normal(rng);  // many ties
    if (round % 7 == 0) z[rng() % z.size()] = -0.0f;
    SamplingParams sp;
    sp.temperature = round % 11 == 0 ? 0.0 : 0.2 + 0.1 * static_cast<double>(rng() % 20);
    if (rng() % 2) sp.top_p = std::max(0.01, static_cast<double>(rng() % 1000) / 1000);
    if (rng() % 2) sp.top_k = 1 + static_cast<int>(rng() % 60);
    if (rng() % 3 == 0) sp.min_p = static_cast<double>(rng() % 100) / 300;
    RowParams p = make_row_params(sp, {});
    std::vector<uint32_t> mask(static_cast<std::size_t>(vocab + 31) / 32);
    for (auto& w : mask) w = rng() | 1;
    const uint32_t* allowed = round % 4 == 0 ? mask.data() : nullptr;
    std::vector<float> before = z;
    ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = vocab, .mask = allowed, .params = &p}, ws, &law));
    EXPECT_EQ(z, before);
    Naive want = naive_law(z, p, allowed), got = law_of(law);
    ASSERT_EQ(want.ids, got.ids) << "round " << round << " vocab " << vocab << " top_p " << sp.top_p << " top_k "
                                 << sp.top_k;
    for (std::size_t i = 0; i < want.ids.size(); ++i) EXPECT_NEAR(want.probabilities[i], got.probabilities[i], 1e-12);
  }
}

TEST(Sampler, ShorterPrefixWinsAndBothAreMeasuredOnTheUnfilteredSoftmax) {
  // p = .4 .3 .2 .1; top-k 2 does not renormalise before top-p .65: without renormalising .4 + .3 > .65 keeps two.
  std::vector<float> z = {std::log(.4f), std::log(.3f), std::log(.2f), std::log(.1f)};
  Workspace ws;
  Distribution law;
  RowParams p = row_params([](auto& s) { s.top_k = 3, s.top_p = 0.65; });
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 4, .params = &p}, ws, &law));
  EXPECT_EQ(law_of(law).ids.size(), 2u);
  p = row_params([](auto& s) { s.top_k = 1, s.top_p = 0.65; });
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 4, .params = &p}, ws, &law));
  EXPECT_EQ(law_of(law).ids.size(), 1u);
}

TEST(Sampler, MassOfExactlyTopPStillTakesTheNextToken) {
  std::vector<float> z = {0, 0, 0, 0};  // .25 each; mass before the third is .5 <= .5
  Workspace ws;
  Distribution law;
  RowParams p = row_params([](auto& s) { s.top_p = 0.5; });
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 4, .params = &p}, ws, &law));
  EXPECT_EQ(law_of(law).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Sampler, ForcedTopKHidesTheRestBeforeTheSoftmax) {
  std::vector<float> z = {std::log(.4f), std::log(.3f), std::log(.2f), std::log(.1f)};
  Workspace ws;
  Distribution law;
  SamplingParams s;
  s.top_p = 0.5;
  RowParams p = make_row_params(s, {.force_top_k = 2});
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 4, .params = &p}, ws, &law));
  EXPECT_EQ(law_of(law).ids.size(), 1u) << ".4 / .7 > .5";
}

TEST(Sampler, PenaltiesBiasAndBansActBeforeTheTemperature) {
  std::vector<float> z = {2.0f, -2.0f, 1.0f, 0.5f, 0.0f};
  std::vector<float> before = z;
  TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{0});
  counts.add(1);
  counts.add(1);
  SamplingParams s;
  s.repetition_penalty = 2.0;
  s.frequency_penalty = 0.25;
  s.presence_penalty = 0.5;
  s.logit_bias = {{4, 3.0f}};
  s.bad_words = {{7, 3}, {2}};
  RowParams p = make_row_params(s, {});
  Workspace ws;
  Distribution law;
  std::vector<int32_t> output = {1, 1, 7};
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 5, .params = &p, .counts = &counts, .output = output}, ws, &law));
  EXPECT_EQ(z, before);
  std::vector<float> edited = {1.0f, -5.0f, -kInf, -kInf, 3.0f};
  Naive want = naive_law(edited, p, nullptr), got = law_of(law);
  EXPECT_EQ(want.ids, got.ids);
  for (std::size_t i = 0; i < want.ids.size(); ++i) EXPECT_NEAR(want.probabilities[i], got.probabilities[i], 1e-12);
}

TEST(Sampler, EndOfTextMayBeBannedForTheFirstTokenOnly) {
  std::vector<float> z = {0, 1, 9};
  Workspace ws;
  TokenReport report;
  RowParams p = row_params([](auto& s) { s.temperature = 0, s.first_n_token_no_eos = 1; });
  Row row{.logits = z.data(), .vocab = 3, .params = &p};
  ASSERT_TRUE(sample_row(row, {}, -1, ws, &report));
  EXPECT_EQ(report.token, 1);
  std::vector<int32_t> output = {1};
  row.output = output;
  ASSERT_TRUE(sample_row(row, {}, -1, ws, &report));
  EXPECT_EQ(report.token, 2);
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEqualMaxima) {
  std::vector<float> z = {-1, 3, 3, 2};
  Workspace ws;
  TokenReport report;
  RowParams p = row_params([](auto& s) { s.temperature = 0, s.logprobs = true; });
  ASSERT_TRUE(sample_row({.logits = z.data(), .vocab = 4, .params = &p}, {.seed = 5}, -1, ws, &report));
  EXPECT_EQ(report.token, 1);
  EXPECT_EQ(report.processed_logprob, 0.0f);
  EXPECT_NEAR(report.raw_logprob, 3 - std::log(std::exp(-1.) + 2 * std::exp(3.) + std::exp(2.)), 1e-6);
}

TEST(Sampler, InvalidRowsAreErrorsOfThatRow) {
  Workspace ws;
  TokenReport report;
  RowParams p = row_params([](auto&) {});
  auto code = [&](std::vector<float> z, const uint32_t* mask) {
    auto result = sample_row({.logits = z.data(), .vocab = static_cast<int>(z.size()), .mask = mask, .params = &p}, {},
                             -1, ws, &report);
    return result ? "" : result.error().message;
  };
  EXPECT_EQ(code({0, std::numeric_limits<float>::quiet_NaN()}, nullptr), "the logits hold NaN or +inf");
  EXPECT_EQ(code({0, kInf}, nullptr), "the logits hold NaN or +inf");
  EXPECT_EQ(code({-kInf, -kInf}, nullptr), "all logits are -inf");
  uint32_t none = 0;
  EXPECT_EQ(code({0, 1}, &none), "the grammar and the banned ids leave no token");
  EXPECT_EQ(code({0, 1}, nullptr), "");
}

TEST(Sampler, ReportsRawAndProcessedLogProbabilities) {
  std::vector<float> z = {std::log(.4f), std::log(.3f), std::log(.2f), std::log(.1f)};
  SamplingParams s;
  s.top_k = 2;
  s.top_logprobs = 3;
  s.sum_smaller_probs = true;
  RowParams p = make_row_params(s, {});
  Workspace ws;
  TokenReport report;
  Row row{.logits = z.data(), .vocab = 4, .params = &p};
  ASSERT_TRUE(sample_row(row, {}, 1, ws, &report));
  EXPECT_EQ(report.token, 1) << "forced";
  EXPECT_NEAR(report.raw_logprob, std::log(.3), 1e-6);
  EXPECT_NEAR(report.processed_logprob, std::log(.3 / .7), 1e-6);
  EXPECT_NEAR(report.smaller_mass, .3 / .7, 1e-6);
  ASSERT_EQ(report.top.size(), 3u);
  EXPECT_EQ(report.top[2].id, 2);
  EXPECT_NEAR(report.top[2].logprob, std::log(.2), 1e-6);
  p.logprob_kind = LogprobKind::kProcessed;
  ASSERT_TRUE(sample_row(row, {}, 3, ws, &report));
  EXPECT_EQ(report.processed_logprob, -kInf) << "outside the filter";
  ASSERT_EQ(report.top.size(), 2u) << "filtered ids are left out";
  EXPECT_NEAR(report.top[0].logprob, std::log(.4 / .7), 1e-6);
}

// The law that is promised: frequencies over seeds equal the processed distribution (chi-square, fixed seeds).
TEST(Sampler, DrawsFollowTheProcessedDistribution) {
  std::vector<float> z = {1.2f, 0.1f, -0.4f, 2.0f, -3.0f, 0.7f, -1.0f, 1.0f, -6.0f};
  Workspace ws;
  Distribution law;
  int kind = 0;
  for (RowParams p : {row_params([](auto&) {}), row_params([](auto& s) { s.temperature = 1.7; }),
                      row_params([](auto& s) { s.top_p = 0.8; }), row_params([](auto& s) { s.top_k = 4; }),
                      row_params([](auto& s) { s.min_p = 0.1; })}) {
    ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 9, .params = &p}, ws, &law));
    for (bool by_race : {true, false}) {
      constexpr int kDraws = 200000;
      std::vector<int> seen(9);
      for (uint32_t i = 0; i < kDraws; ++i) {
        Stream s{.seed = 77 + static_cast<uint64_t>(kind) * 1000003 + i / 100, .index = i % 100};
        ++seen[static_cast<std::size_t>(by_race ? draw_race(law, s, Purpose::kNoise)
                                                : draw_inverse(law, uniform(s, Purpose::kDraft)))];
      }
      double chi = 0;
      int cells = 0;
      law.each([&](int32_t id, double q) {
        double expected = q * kDraws, off = seen[static_cast<std::size_t>(id)] - expected;
        chi += off * off / expected;
        ++cells;
      });
      // 99.99 % point of chi-square with up to 8 degrees of freedom is below 32.
      EXPECT_LT(chi, 32) << "kind " << kind << " race " << by_race << " cells " << cells;
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), kDraws);
      for (int v = 0; v < 9; ++v)
        if (law.weight(v) == 0) {
          EXPECT_EQ(seen[static_cast<std::size_t>(v)], 0);
        }
    }
    ++kind;
  }
}

TEST(Sampler, TruncatedDraftLawKeepsTheBestIds) {
  std::vector<float> z(500);
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(i % 250) * 0.1f;
  RowParams p = draft_params(row_params([](auto&) {}), 10);
  Workspace ws;
  Distribution law;
  ASSERT_TRUE(shape_row({.logits = z.data(), .vocab = 500, .params = &p}, ws, &law));
  EXPECT_EQ(law_of(law).ids, (std::vector<int32_t>{245, 246, 247, 248, 249, 495, 496, 497, 498, 499}));
}

}  // namespace
}  // namespace deepinfer::sampling
