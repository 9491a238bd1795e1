// What a step costs, learned while it runs.
//
//   T = base[g] + fixed + a x rows + b x (key bytes read) + c x (experts touched)
//
//   g        smallest captured step size that holds the rows; without captured steps g = rows and base = 0
//   experts  E (1 - (1 - k/E)^rows) distinct experts a layer: extra rows are not free even at small batches, because
//            they pull in weights that nobody else reads
//   knees    what the terms miss (a cache that overflows, a compute bound) is a factor by number of rows, learned a
//            quarter octave at a time and interpolated between sizes that were seen
//   fit      recursive least squares with forgetting and non-negative coefficients, drawn towards a prior until steps
//            of different shapes have been seen. Only the proportions of the prior count (bytes and operations of the
//            model say them): the first step sets its scale
//
// Also DeepInfer's own estimators (a median slope, a median sampler time), which serve where a curve was profiled.
// Not thread-safe; the scheduler thread owns it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "sched/verification_budget.h"

namespace deepinfer::sched {

struct StepShape {
  int rows = 0;
  double context_bytes = 0.0;  // keys that the step reads
};

struct CostPrior {
  double fixed_ms = 1.0;
  double ms_per_row = 0.05;
  double ms_per_gigabyte = 1.0;  // of keys
  double ms_all_experts = 1.0;   // a step that touches every expert of every layer
  int num_experts = 1, experts_per_token = 1;
};

class CostModel {
 public:
  explicit CostModel(const CostPrior& prior, std::vector<Tier> tiers = {});

  void observe(const StepShape& shape, double forward_ms);
  double predict(const StepShape& shape) const;
  // Whether steps of about so many rows were seen, more than once and not too long ago: the prediction is no guess.
  bool knows(int rows) const;
  // predict() for rows = num_seqs .. num_seqs x (1 + max_draft), `fixed_ms` added; 0 where no captured step is large
  // enough.
  std::vector<double> table(int num_seqs, int max_draft, double context_bytes, double fixed_ms) const;
  // Mean relative error of predictions made before each of the last steps were seen.
  double recent_error() const { return error_; }

 private:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;
  int padded_rows(int rows) const;
  double base_ms(int rows) const;
  void adopt_scale(double ratio);
  void learn_size(int rows, double ratio);
  Terms terms(const StepShape& shape) const;
  double smooth(const StepShape& shape) const;  // without the factor
  double factor(int rows) const;
  void solve();
  bool solve_subset(unsigned subset, Terms& x) const;

  CostPrior prior_;
  std::vector<Tier> tiers_;
  Terms scale_;     // prior coefficients: the fit is of multiples of them
  Terms weight_{};  // fitted multiples
  std::array<std::array<double, kTerms>, kTerms> square_{};
  Terms right_{};
  struct Size {
    double factor = 1.0;
    int num_seen = 0, last_seen = 0;  // steps; the number of the last one
  };
  std::map<int, Size> sizes_;  // by quarter octave of rows
  int num_observed_ = 0;
  double error_ = 0.0;
};

double expected_distinct_experts(int num_experts, int experts_per_token, double rows);

// Verification and drafting time: the median of the last 9 values for the same number of sequences if there are
// `least`, else of the last 9 of all (if as many), else 0.
class SamplerTime {
 public:
  explicit SamplerTime(int least = 5) : least_(static_cast<std::size_t>(least)) {}
  void observe(int num_seqs, double ms);
  double predict(int num_seqs) const;

 private:
  std::size_t least_;
  std::map<int, std::deque<double>> by_size_;
  std::deque<double> all_;
};

// Time a row adds to a profiled step: median a size (of sizes with 10 samples or more) of (ms - base) / rows, then the
// median of those, not below 0; over the last 5000 steps.
class LiveSlope {
 public:
  explicit LiveSlope(std::vector<Tier> profile) : profile_(std::move(profile)) {}
  void observe(int tier_rows, double ms);
  double predict() const;

 private:
  std::vector<Tier> profile_;
  std::deque<std::pair<int, double>> last_;
};

// Sizes of captured steps: powers of two below the interval, its multiples, the maximum.
std::vector<int> step_sizes(int max_size, int interval);

}  // namespace deepinfer::sched
