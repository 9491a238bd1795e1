#include "sched/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

// What a label adds to the variances: the weight of a label halves about every 200 later ones.
constexpr double kSlopeDrift = 1e-6, kOffsetDrift = 1e-4;
constexpr double kLargestMove = 2.0;  // of a corrected logit, by one label
constexpr double kErrorRate = 0.002;
constexpr double kLargestLogit = 60.0;  // as the head clamps
constexpr double kLargestOffset = 8.0;

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

Calibration::Calibration(int max_draft, std::span<const double> temperatures, bool is_frozen)
    : max_draft_(max_draft), pairs_(static_cast<std::size_t>(max_draft) * kBuckets), is_frozen_(is_frozen) {
  DI_CHECK(temperatures.size() <= 1 || static_cast<int>(temperatures.size()) == max_draft,
           "{} temperatures for {} drafts", temperatures.size(), max_draft);
  for (int k = 0; k < max_draft && !temperatures.empty(); ++k)
    for (int b = 0; b < kBuckets; ++b)
      pairs_[static_cast<std::size_t>(k * kBuckets + b)].slope =
          1.0 / temperatures[temperatures.size() == 1 ? 0 : static_cast<std::size_t>(k)];
}

int Calibration::bucket_of(double t) {
  return t < 1e-5 ? 0 : t < 0.7 ? 1 : t < 1.1 ? 2 : 3;
}

Calibration::Pair& Calibration::pair(int position, double sampling_temperature) {
  DI_CHECK(position >= 0 && position < max_draft_, "draft {} of {}", position, max_draft_);
  return pairs_[static_cast<std::size_t>(position * kBuckets + bucket_of(sampling_temperature))];
}

float Calibration::confidence(int position, double sampling_temperature, float logit) const {
  const Pair& p = pair(position, sampling_temperature);
  double clamped = std::clamp(static_cast<double>(logit), -kLargestLogit, kLargestLogit);
  return static_cast<float>(sigmoid(std::clamp(p.slope * clamped + p.offset, -kLargestLogit, kLargestLogit)));
}

void Calibration::observe(int position, double sampling_temperature, float logit, float label) {
  if (!std::isfinite(logit) || !(label >= 0.0f && label <= 1.0f)) return;
  double off = static_cast<double>(confidence(position, sampling_temperature, logit)) - static_cast<double>(label);
  error_ += std::max(kErrorRate, 1.0 / static_cast<double>(++num_labels_)) * (std::abs(off) - error_);
  if (is_frozen_) return;
  Pair& p = pair(position, sampling_temperature);
  double x = std::clamp(static_cast<double>(logit), -kLargestLogit, kLargestLogit);
  double predicted = sigmoid(p.slope * x + p.offset), steepness = std::max(1e-3, predicted * (1.0 - predicted));
  p.slope_var += kSlopeDrift, p.offset_var += kOffsetDrift;
  double from_slope = p.slope_var * x + p.covar, from_offset = p.covar * x + p.offset_var;
  double logit_var = from_slope * x + from_offset, scale = 1.0 / (1.0 + steepness * logit_var);
  double move = -off * scale;
  move = std::clamp(move * logit_var, -kLargestMove, kLargestMove) / logit_var;
  p.slope = std::clamp(p.slope + from_slope * move, 0.05, 20.0);
  p.offset = std::clamp(p.offset + from_offset * move, -kLargestOffset, kLargestOffset);
  double shrink = steepness * scale;
  p.slope_var -= shrink * from_slope * from_slope;
  p.offset_var -= shrink * from_offset * from_offset;
  p.covar -= shrink * from_slope * from_offset;
}

}  // namespace deepinfer::sched
