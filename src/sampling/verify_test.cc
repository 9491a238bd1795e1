#include "sampling/verify.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/testing/runtime_cases.h"
#include "sampling/stops.h"
#include "sampling/testing/toy_model.h"

namespace deepinfer::sampling {
namespace {

const double kPenalty = std::exp(-5e-5);  // DeepInfer's alpha

using testing_cases::name_of;
using testing_cases::numbers;
using testing_cases::runtime_cases;

Distribution law_from(const json::value& v) {
  std::vector<float> p = numbers<float>(v);
  Distribution law;
  law.set_from(p.data(), static_cast<int>(p.size()));
  return law;
}

TEST(VerifyCases, RejectionRows) {
  for (const auto& c : runtime_cases("rejection_rows")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    RowVerdict got =
        verify_row(law_from(in.at("target")), law_from(in.at("draft")), in.at("draft_token").to_number<int32_t>(),
                   in.at("u_accept").to_number<float>(), in.at("u_residual").to_number<float>(), kPenalty);
    EXPECT_EQ(got.is_accepted, want.at("accepted").as_bool()) << name_of(c);
    EXPECT_EQ(got.token, want.at("token").to_number<int32_t>()) << name_of(c);
    EXPECT_NEAR(got.accept_probability, want.at("accept_prob").to_number<double>(), 1e-6) << name_of(c);
  }
}

TEST(VerifyCases, RejectionChains) {
  for (const auto& c : runtime_cases("rejection_chains")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto flags = [](const json::value& v, bool* out) {
      std::size_t n = 0;
      for (const auto& x : v.as_array()) out[n++] = x.as_bool();
      return std::span<const bool>(out, n);
    };
    bool accepts[8], has_draft[8];
    auto forced = numbers<int32_t>(in.at("forced")), drafts = numbers<int32_t>(in.at("draft"));
    Chain got =
        accepted_chain(flags(in.at("row_accept"), accepts), flags(in.at("is_verify"), has_draft), forced, drafts);
    EXPECT_EQ(got.accepted, want.at("accepted_drafts").to_number<int>()) << name_of(c);
    EXPECT_EQ(got.final_row, want.at("final_row").to_number<int>()) << name_of(c);
    EXPECT_EQ(got.emitted(), want.at("tokens_emitted").to_number<int>()) << name_of(c);
  }
}

// The law of one verified row, put together from the pieces that verify_row uses: d(x) min(1, p / d) plus the residual.
std::vector<double> law_of_row(const Distribution& p, const Distribution& d, int vocab, double alpha) {
  std::vector<double> law(static_cast<std::size_t>(vocab)), residual(law.size());
  double accepted = 0, left = 0;
  for (int v = 0; v < vocab; ++v) {
    law[static_cast<std::size_t>(v)] = std::min(p.probability(v), d.probability(v));
    accepted += law[static_cast<std::size_t>(v)];
    residual[static_cast<std::size_t>(v)] = std::max(0.0, p.probability(v) - alpha * d.probability(v));
    left += residual[static_cast<std::size_t>(v)];
  }
  for (int v = 0; v < vocab; ++v)
    law[static_cast<std::size_t>(v)] +=
        (1 - accepted) * (left > 0 ? residual[static_cast<std::size_t>(v)] / left : p.probability(v));
  return law;
}

TEST(VerifyCases, OutputLaws) {
  for (const auto& c : runtime_cases("output_laws")) {
    Distribution p = law_from(c.at("inputs").at("target")), d = law_from(c.at("inputs").at("draft"));
    const auto& want = c.at("expected");
    int vocab = static_cast<int>(c.at("inputs").at("target").as_array().size());
    for (auto [alpha, key] : {std::pair{kExactAlpha, "law_alpha_1"}, std::pair{kPenalty, "law_alpha_penalty"}}) {
      auto got = law_of_row(p, d, vocab, alpha), expected = numbers<double>(want.at(key));
      for (std::size_t v = 0; v < got.size(); ++v) EXPECT_NEAR(got[v], expected[v], 1e-7) << name_of(c);  // fp32 inputs
    }
    EXPECT_NEAR(overlap(p, d), want.at("accept_rate").to_number<double>(), 1e-7) << name_of(c);
  }
}

TEST(VerifyCases, NonAnticipation) {
  for (const auto& c : runtime_cases("non_anticipation")) {
    const auto& in = c.at("inputs");
    Distribution p = law_from(in.at("target")), d = law_from(in.at("draft"));
    auto expected = numbers<double>(c.at("expected").at("law"));
    // Admitted drafts go through the row, others leave an ordinary draw from p.
    std::vector<double> law(expected.size());
    for (std::size_t x = 0; x < law.size(); ++x) {
      bool is_admitted = in.at("admit_if_token").as_array()[x].as_bool();
      double drawn = d.probability(static_cast<int32_t>(x)),
             accept = std::min(1.0, p.probability(static_cast<int32_t>(x)) / drawn);
      if (is_admitted) law[x] += drawn * accept;
      double rest = is_admitted ? drawn * (1 - accept) : drawn, left = 1 - overlap(p, d);
      for (std::size_t v = 0; v < law.size(); ++v) {
        double pv = p.probability(static_cast<int32_t>(v)),
               r = std::max(0.0, pv - d.probability(static_cast<int32_t>(v)));
        law[v] += rest * (is_admitted ? r / left : pv);
      }
    }
    for (std::size_t v = 0; v < law.size(); ++v) EXPECT_NEAR(law[v], expected[v], 1e-6) << name_of(c);
  }
}

TEST(VerifyCases, CommonNoise) {
  for (const auto& c : runtime_cases("common_noise")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    std::vector<float> clocks = numbers<float>(in.at("gumbel"));
    for (float& g : clocks) g = std::exp(-g);  // Gumbel noise is -log of an exponential clock
    int32_t draft = race_winner(law_from(in.at("draft")), clocks.data()),
            emitted = race_winner(law_from(in.at("target")), clocks.data());
    EXPECT_EQ(draft, want.at("draft_token").to_number<int32_t>()) << name_of(c);
    EXPECT_EQ(emitted, want.at("emitted").to_number<int32_t>()) << name_of(c);
    EXPECT_EQ(draft == emitted, want.at("accepted").as_bool()) << name_of(c);
  }
}

TEST(VerifyCases, Stops) {
  for (const auto& c : runtime_cases("stops")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto emitted = numbers<int32_t>(in.at("emitted"));
    StopCut got = cut_at_stop(emitted, in.at("output_len_before").to_number<int64_t>(),
                              {.eos_id = in.at("eos").to_number<int32_t>(),
                               .ignores_eos = in.at("ignore_eos").as_bool(),
                               .max_tokens = in.at("max_tokens").to_number<int64_t>()});
    EXPECT_EQ(got.kept, static_cast<int>(want.at("kept").as_array().size())) << name_of(c);
    EXPECT_EQ(got.kept, want.at("processed_tokens").to_number<int>()) << name_of(c);
    const char* reason = got.reason == StopReason::kStop ? "stop" : got.reason == StopReason::kLength ? "length" : "";
    EXPECT_EQ(reason, want.at("finish_reason").as_string()) << name_of(c);
  }
}

TEST(Stops, IdsOfTheRequestStopToo) {
  std::vector<int32_t> emitted = {1, 9, 4}, ids = {7, 9};
  EXPECT_EQ(cut_at_stop(emitted, 0, {.eos_id = 2, .stop_ids = ids, .max_tokens = 10}).kept, 2);
}

TEST(Verify, SpeculativeLawEqualsDirectInEveryMode) {
  for (VerifyMode mode : {VerifyMode::kToken, VerifyMode::kBlock, VerifyMode::kNoise}) {
    toy::StepSettings settings{mode, [](SamplingParams& p) { p.top_p = 0.9; }, 2};
    toy::ToyRunner direct(settings), speculative(settings);
    EXPECT_TRUE(toy::laws_agree(toy::frequencies(direct, 0, 11, 20000), frequencies(speculative, 2, 1234567, 20000)))
        << static_cast<int>(mode);
  }
}

TEST(Verify, CommonNoiseGivesTheSameTokensAtEveryWidth) {
  toy::ToyRunner runner({VerifyMode::kNoise, [](SamplingParams& p) { p.top_p = 0.9; }, 2});
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    int alone = runner.run(seed, 0);
    EXPECT_EQ(runner.run(seed, 1), alone);
    EXPECT_EQ(runner.run(seed, 2), alone);
  }
}

// ---- single steps --------------------------------------------------------------------------------------------------

struct Step {
  std::vector<std::vector<float>> rows;
  std::vector<int32_t> drafts, golden;
  SamplingParams params;
  VerifyResult result;

  Result<void> run() {
    RowParams p = make_row_params(params, {});
    std::vector<float*> logits;
    for (auto& r : rows) logits.push_back(r.data());
    VerifyWorkspace ws;
    return verify({.params = &p,
                   .stream = {.seed = 1, .index = 40},
                   .logits = logits,
                   .vocab = static_cast<int>(rows[0].size()),
                   .drafts = drafts,
                   .golden = golden},
                  ws, &result);
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> out;
    for (int i = 0; i < result.num_tokens; ++i) out.push_back(result.tokens[static_cast<std::size_t>(i)].token);
    return out;
  }
};

TEST(Verify, GreedyAcceptsExactlyTheArgMax) {
  Step s{.rows = {{0, 9, 9}, {5, 0, 0}, {0, 0, 1}}, .drafts = {1, 2}};
  s.params.temperature = 0;
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(s.result.num_accepted, 1);
  EXPECT_EQ(s.result.labels, (std::vector<float>{1, 0}));
  s.drafts = {1, 0};
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1, 0, 2}));
  s.drafts = {2, 0};  // the higher id of a tie is not the arg-max
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1}));
}

TEST(Verify, GoldenTokensReplaceAndAcceptOnlyThemselves) {
  Step s{.rows = {{0, 9, 0}, {5, 0, 0}, {0, 0, 1}}, .drafts = {2, 0}, .golden = {2, 1, -1}};
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(s.result.num_accepted, 1);
}

TEST(Verify, MissingDraftEndsTheStepWithAnOrdinaryDraw) {
  Step s{.rows = {{0, 9, 0}, {5, 0, 0}}, .drafts = {-1}};
  s.params.temperature = 0;
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1}));
  EXPECT_TRUE(s.result.labels.empty());
}

TEST(Verify, InvalidLogitsMatterOnlyInRowsThatAreReached) {
  Step s{.rows = {{0, 9, 0}, {std::numeric_limits<float>::quiet_NaN(), 0, 0}}, .drafts = {2}};
  s.params.temperature = 0;
  ASSERT_TRUE(s.run());
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1}));
  s.drafts = {1};
  auto result = s.run();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "output token 41: the logits hold NaN or +inf");
}

}  // namespace
}  // namespace deepinfer::sampling
