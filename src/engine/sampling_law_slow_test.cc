// What speculative sampling promises, on the embedded model: its tokens have the law of plain sampling.
//
//   on one prefill's logits   200,000 seeds for every way to verify and kind of filter, against the law itself
//   end to end                answers of an engine with drafts against those of one without, once for each kind of
//   filter
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "engine/testing.h"
#include "sampling/testing/toy_model.h"
#include "sampling/verify.h"

namespace deepinfer::engine {
namespace {

constexpr int kDraws = 200000;
constexpr int kLikeliest = 64;  // ids of the model's law that are kept: most of its mass

struct Filter {
  const char* name;
  void (*change)(SamplingParams&);
};
constexpr Filter kFilters[] = {
    {"temperature", [](SamplingParams& p) { p.temperature = 1.2; }},
    {"top_p", [](SamplingParams& p) { p.top_p = 0.8; }},
    {"top_k and a penalty", [](SamplingParams& p) { p.top_k = 12, p.repetition_penalty = 1.2; }},
    {"min_p", [](SamplingParams& p) { p.min_p = 0.02, p.temperature = 1.5; }},
};

std::unique_ptr<EngineImpl> make(int num_drafts, uint64_t seed, int varlen) {
  Settings settings;
  settings.varlen = varlen;
  EngineOptions options{.model = kTiny, .num_threads = 2, .max_num_seqs = 64, .num_drafts = num_drafts, .seed = seed};
  auto engine = EngineImpl::create(options, settings);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

// Logits of the ids in `order` after a text, up to a constant; the first call fills `order`, likeliest first.
std::vector<float> logits_after(EngineImpl& engine, const std::string& text, std::vector<int32_t>& order) {
  Request r = request(engine.encode(text), 1);
  r.sampling.logprobs = true;
  r.sampling.top_logprobs = 1000;
  CompletionOutput c = engine.generate({r}, {})[0].outputs[0];
  EXPECT_EQ(c.error, "");
  std::map<int32_t, float> logprob;
  for (const TopLogprob& top : c.top_logprobs[0]) logprob[top.token] = top.logprob;
  if (order.empty())
    for (int i = 0; i < kLikeliest; ++i) order.push_back(c.top_logprobs[0][static_cast<size_t>(i)].token);
  std::vector<float> z;
  for (int32_t id : order) z.push_back(logprob.contains(id) ? logprob[id] : -30.0f);
  return z;
}

struct Laws {
  std::vector<float> target, draft;  // [kLikeliest]
};

// Two laws of the model that are alike and not equal.
const Laws& model_laws() {
  static const Laws laws = [] {
    auto engine = make(0, 1, -1);
    std::vector<int32_t> order;
    Laws l;
    l.target = logits_after(*engine, "<｜begin▁of▁sentence｜>Once upon a time, there was a little", order);
    l.draft = logits_after(*engine, "<｜begin▁of▁sentence｜>One day, there was a little", order);
    return l;
  }();
  return laws;
}

// Chi-square of counts against a law; cells that expect few are taken together.
void expect_counts(const std::vector<double>& seen, const sampling::Distribution& law, const std::string& what) {
  double chi = 0, rest = 0, rest_seen = 0;
  int cells = 0;
  auto add = [&](double expected, double count) {
    chi += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (int32_t id = 0; id < kLikeliest; ++id) {
    const double expected = kDraws * law.probability(id), count = seen[static_cast<size_t>(id)];
    EXPECT_TRUE(expected > 0 || count == 0) << what << ": token " << id << " is outside the filter";
    if (expected >= 10) {
      add(expected, count);
    } else {
      rest += expected, rest_seen += count;
    }
  }
  if (rest > 0) add(rest, rest_seen);
  // Beyond the 99.999 % point of chi-square with so many cells.
  EXPECT_LT(chi, cells + 4.5 * std::sqrt(2.0 * cells) + 8) << what << ", " << cells << " cells";
  EXPECT_GT(cells, 4) << what;
}

// The first token of a round with one draft.
void expect_law(const SamplingParams& sp, sampling::VerifyMode mode, const uint32_t* mask, const std::string& what) {
  std::vector<float> target = model_laws().target, after = target, draft = model_laws().draft;
  sampling::RowParams params = sampling::make_row_params(sp, {});
  sampling::RowParams draft_params = sampling::draft_params(params, kLikeliest);
  sampling::TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{1, 3});
  sampling::VerifyWorkspace ws;
  sampling::Distribution law, draft_law;
  sampling::Row row{.logits = target.data(), .vocab = kLikeliest, .mask = mask, .params = &params, .counts = &counts};
  ASSERT_TRUE(sampling::shape_row(row, ws.row, &law));
  row.logits = draft.data(), row.params = &draft_params, row.mask = nullptr;
  ASSERT_TRUE(sampling::shape_row(row, ws.row, &draft_law));
  // Shaping edits the logits; every round starts from the model's.
  std::vector<const sampling::Distribution*> laws = {&draft_law};
  std::vector<const uint32_t*> masks;
  if (mask != nullptr) masks = {mask, mask};
  std::vector<double> seen(kLikeliest);
  double accepted = 0;
  sampling::VerifyResult result;
  std::vector<int32_t> output;
  for (int i = 0; i < kDraws; ++i) {
    target = after = model_laws().target;
    std::vector<float*> logits = {target.data(), after.data()};
    const sampling::Stream stream{.seed = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u, .index = 7};
    std::vector<int32_t> drafts = {sampling::draw_draft(draft_law, stream, 0, mode)};
    ASSERT_TRUE(sampling::verify({.mode = mode,
                                  .params = &params,
                                  .counts = &counts,
                                  .output = &output,
                                  .stream = stream,
                                  .logits = logits,
                                  .vocab = kLikeliest,
                                  .masks = masks,
                                  .drafts = drafts,
                                  .draft_laws = laws},
                                 ws, &result));
    seen[static_cast<size_t>(result.tokens[0].token)] += 1;
    accepted += result.num_accepted;
  }
  expect_counts(seen, law, what);
  EXPECT_GT(accepted, 0.05 * kDraws) << what;
}

TEST(SamplingLaw, OfOnePrefillsLogits) {
  using enum sampling::VerifyMode;
  for (const Filter& filter : kFilters) {
    SamplingParams sp;
    filter.change(sp);
    for (auto mode : {kBlock, kNoise})  // those that the engine uses
      expect_law(sp, mode, nullptr, std::string(filter.name) + " " + std::to_string(static_cast<int>(mode)));
  }
}

TEST(SamplingLaw, OfOnePrefillsLogitsUnderAMask) {
  std::vector<uint32_t> mask(kLikeliest / 32, 0x5a5a3c99u);
  expect_law(SamplingParams{}, sampling::VerifyMode::kBlock, mask.data(), "mask");
}

// Counts of the second to fourth token over many answers, in few cells, which all are full.
std::vector<double> answers(EngineImpl& engine, const Filter& filter, bool has_grammar) {
  constexpr int kAnswers = 600, kCells = 31;
  Request r = request(engine.encode("<｜begin▁of▁sentence｜>Once upon a time, there was a"), 4);
  r.sampling.temperature = 1.0;
  filter.change(r.sampling);
  if (has_grammar)
    r.sampling.so_args = StructuredOutput{.schema_type = "regex", .schema = " ?(big|little|red)( [a-z]+)+"};
  std::vector<double> seen(kCells);
  for (const RequestOutput& output : engine.generate(std::vector<Request>(kAnswers, r), {})) {
    const auto& ids = output.outputs[0].token_ids;
    EXPECT_GE(ids.size(), 2u) << output.outputs[0].error;
    uint32_t hash = 0;
    for (size_t i = 1; i < ids.size(); ++i) hash = hash * 3079 + static_cast<uint32_t>(ids[i]);
    seen[hash % kCells] += 1;
  }
  return seen;
}

TEST(SamplingLaw, OfWholeAnswers) {
  auto direct = make(0, 1, -1);
  int way = 0;
  for (const Filter& filter : kFilters) {
    // Every draft verified, or scheduled; free, or under a grammar.
    auto speculative = make(-1, 2, way % 2);
    const bool has_grammar = way / 2 % 2 == 1;
    const std::vector<double> expected = answers(*direct, filter, has_grammar);
    EXPECT_TRUE(sampling::toy::laws_agree(expected, answers(*speculative, filter, has_grammar))) << filter.name;
    EXPECT_GT(speculative->stats().accepted_tokens, 100);
    ++way;
  }
  const Filter narrow{"top_k", [](SamplingParams& p) { p.top_k = 2; }};
  EXPECT_FALSE(sampling::toy::laws_agree(answers(*direct, kFilters[0], false), answers(*direct, narrow, false)))
      << "too few answers to tell laws apart";
}

}  // namespace
}  // namespace deepinfer::engine
