// Confidences of the draft head, corrected while the engine runs.
//
//   c_k = sigmoid(a_k x logit + b_k)        a = 1 / T_k, one pair for each draft position and temperature bucket
//
// Labels are exact acceptance probabilities (sampling/verify.h). Each pair is a belief (mean and covariance) that a
// label moves as in an extended Kalman filter: far at first, so that a head that is badly off is corrected within some
// tens of labels, then slowly, for the domain drifts slowly. Only rows up to the first rejected one have a label.
// Frozen in deterministic mode: the same request must meet the same numbers. Products of the corrected confidences stay
// monotone, whatever the pairs are. The scheduler thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::sched {

class Calibration {
 public:
  // `temperatures` (CONFIDENCE_HEAD_TEMPERATURE): one for all positions, or one a position.
  Calibration(int max_draft, std::span<const double> temperatures, bool is_frozen);

  float confidence(int position, double sampling_temperature, float logit) const;
  void observe(int position, double sampling_temperature, float logit, float label);

  // Mean |confidence - label| of the last labels, each before it corrects anything: slow average, for the statistics.
  double error() const { return error_; }

 private:
  static constexpr int kBuckets = 4;  // sampling temperature: greedy, below 0.7, below 1.1, above
  struct Pair {
    double slope = 1.0, offset = 0.0;
    double slope_var = 0.04, offset_var = 4.0, covar = 0.0;  // heads are off by an offset more than by a slope
  };
  static int bucket_of(double sampling_temperature);
  Pair& pair(int position, double sampling_temperature);
  const Pair& pair(int position, double sampling_temperature) const {
    return const_cast<Calibration*>(this)->pair(position, sampling_temperature);
  }

  int max_draft_;
  std::vector<Pair> pairs_;  // [position][bucket]
  bool is_frozen_;
  double error_ = 0.0;
  int64_t num_labels_ = 0;
};

}  // namespace deepinfer::sched
