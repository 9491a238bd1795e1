// A target and a draft model over six tokens, and a generator that runs them through verify(): for tests of the law of
// the output. Both models' logits are functions of the last token.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include "sampling/verify.h"

namespace deepinfer::sampling::toy {

inline constexpr int kVocab = 6;

struct Toy {
  std::vector<std::vector<float>> target, draft;
  Toy() {
    for (int last = 0; last < kVocab; ++last) {
      std::vector<float> t, d;
      for (int v = 0; v < kVocab; ++v) {
        t.push_back(std::sin(1.3f * static_cast<float>(last) + 2.1f * static_cast<float>(v)) * 1.6f);
        d.push_back(t.back() + std::cos(3.7f * static_cast<float>(v * last + v)) * 0.9f);
      }
      target.push_back(t);
      draft.push_back(d);
    }
  }
};

struct StepSettings {
  VerifyMode mode;
  void (*change)(SamplingParams&);
  int width;  // drafts verified
};

// Generates three tokens from token 0 by steps of up to `width` drafts, and returns 36 * t0 + 6 * t1 + t2.
class ToyRunner {
 public:
  explicit ToyRunner(const StepSettings& s) : settings_(s) {
    SamplingParams p;
    s.change(p);
    params_ = make_row_params(p, {});
    draft_ = draft_params(params_, 4);
  }

  int run(uint64_t seed, int width) {
    std::vector<int32_t> output;
    TokenCounts counts;
    TokenCounts* kept_counts = params_.has_penalties() ? &counts : nullptr;
    while (output.size() < 3) {
      int n = std::min(width, 2 - static_cast<int>(output.size()));
      auto index = static_cast<uint32_t>(output.size());
      int32_t last = output.empty() ? 0 : output.back();
      std::vector<int32_t> drafts;
      std::vector<const Distribution*> laws;
      std::vector<std::vector<float>> rows = {toy_.target[static_cast<std::size_t>(last)]};
      if (static_cast<int>(laws_.size()) < n) laws_.resize(static_cast<std::size_t>(n));
      TokenCounts ahead = counts;
      for (int k = 0; k < n; ++k) {
        std::vector<float> z = toy_.draft[static_cast<std::size_t>(last)];
        auto& law = laws_[static_cast<std::size_t>(k)];
        auto shaped =
            shape_row({.logits = z.data(), .vocab = kVocab, .params = &draft_, .counts = &ahead}, ws_.row, &law);
        DI_CHECK(shaped.has_value(), "draft row");
        last = draw_draft(law, {.seed = seed, .index = index}, k, settings_.mode);
        ahead.add(last);
        drafts.push_back(last);
        laws.push_back(&law);
        rows.push_back(toy_.target[static_cast<std::size_t>(last)]);
      }
      std::vector<float*> logits;
      for (auto& r : rows) logits.push_back(r.data());
      std::size_t before = output.size();
      auto verified = verify({.mode = settings_.mode,
                              .params = &params_,
                              .counts = kept_counts,
                              .output = &output,
                              .stream = {.seed = seed, .index = index},
                              .logits = logits,
                              .vocab = kVocab,
                              .drafts = drafts,
                              .draft_laws = laws},
                             ws_, &result_);
      DI_CHECK(verified.has_value(), "verified rows");
      DI_CHECK(output.size() == before, "history was not restored");
      for (int i = 0; i < result_.num_tokens; ++i) {
        output.push_back(result_.tokens[static_cast<std::size_t>(i)].token);
        counts.add(output.back());
      }
      accepted_ += result_.num_accepted;
      proposed_ += n;
      labels_ += static_cast<double>(std::accumulate(result_.labels.begin(), result_.labels.end(), 0.0f));
      judged_ += static_cast<double>(result_.labels.size());
    }
    return output[0] * 36 + output[1] * 6 + output[2];
  }
  double accepted() const { return accepted_; }
  double mean_label() const { return labels_ / judged_; }
  double acceptance_of_judged() const { return accepted_ / judged_; }

 private:
  StepSettings settings_;
  Toy toy_;
  RowParams params_, draft_;
  VerifyWorkspace ws_;
  VerifyResult result_;
  std::vector<Distribution> laws_;
  double accepted_ = 0, proposed_ = 0, labels_ = 0, judged_ = 0;
};

// Counts over `draws` runs of three tokens.
inline std::vector<double> frequencies(ToyRunner& runner, int width, uint64_t first_seed, int draws) {
  std::vector<double> seen(216);
  for (int i = 0; i < draws; ++i)
    seen[static_cast<std::size_t>(runner.run(first_seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull, width))] +=
        1;
  return seen;
}

// Two-sample chi-square of equally many draws, and whether it lies below the 99.999 % point.
inline bool laws_agree(const std::vector<double>& a, const std::vector<double>& b) {
  double chi = 0;
  int cells = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] + b[i] < 20) continue;
    chi += (a[i] - b[i]) * (a[i] - b[i]) / (a[i] + b[i]);
    ++cells;
  }
  return chi < cells + 4.5 * std::sqrt(2.0 * cells) + 8;
}

}  // namespace deepinfer::sampling::toy
