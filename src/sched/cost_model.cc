#include "sched/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

constexpr double kForgetting = 0.998;  // a step counts half after 350 more
// Against the squared relative error of one step: a prior ten times off must yield.
constexpr double kPriorWeight = 0.001;
constexpr double kSizesPerOctave = 4.0, kFactorRate = 0.1;
constexpr double kLargestJump = 2.0;             // of a factor by one step: one that was held up says little
constexpr double kHeldUp = 1.25;                 // times its prediction: a step of a known size counts as no more
constexpr int kKneesFrom = 8;                    // steps: the smooth part has seen something
constexpr int kKnownFrom = 2, kKnownFor = 5000;  // steps of a size; steps since the last of them
constexpr std::size_t kSamplerHistory = 9, kSlopeHistory = 5000, kSlopeLeast = 10;

// Among the sizes, a quarter octave each.
double place_of(int rows) {
  return kSizesPerOctave * std::log2(std::max(1, rows));
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  std::size_t half = v.size() / 2;
  return v.size() % 2 == 1 ? v[half] : 0.5 * (v[half - 1] + v[half]);
}

}  // namespace

double expected_distinct_experts(int num_experts, int experts_per_token, double rows) {
  double miss = 1.0 - static_cast<double>(experts_per_token) / num_experts;
  return num_experts * (1.0 - std::pow(std::max(0.0, miss), rows));
}

CostModel::CostModel(const CostPrior& prior, std::vector<Tier> tiers)
    : prior_(prior),
      tiers_(std::move(tiers)),
      scale_{std::max(prior.fixed_ms, 1e-6), std::max(prior.ms_per_row, 1e-6), std::max(prior.ms_per_gigabyte, 1e-6),
             std::max(prior.ms_all_experts, 1e-6)} {
  weight_.fill(1.0);
  if (!tiers_.empty()) weight_.fill(0.0);  // a profiled base already holds what the prior guesses
  for (int i = 0; i < kTerms; ++i) {
    square_[static_cast<std::size_t>(i)][static_cast<std::size_t>(i)] = kPriorWeight;
    right_[static_cast<std::size_t>(i)] = kPriorWeight * weight_[static_cast<std::size_t>(i)];
  }
}

int CostModel::padded_rows(int rows) const {
  if (tiers_.empty()) return rows;
  auto tier = std::ranges::lower_bound(tiers_, rows, {}, &Tier::rows);
  return tier == tiers_.end() ? rows : tier->rows;
}

double CostModel::base_ms(int rows) const {
  if (tiers_.empty()) return 0.0;
  auto tier = std::ranges::lower_bound(tiers_, rows, {}, &Tier::rows);
  return tier == tiers_.end() ? tiers_.back().ms * rows / tiers_.back().rows : tier->ms;
}

CostModel::Terms CostModel::terms(const StepShape& shape) const {
  int rows = padded_rows(shape.rows);
  double experts = expected_distinct_experts(prior_.num_experts, prior_.experts_per_token, rows) / prior_.num_experts;
  return {scale_[0], scale_[1] * rows, scale_[2] * shape.context_bytes * 1e-9, scale_[3] * experts};
}

double CostModel::smooth(const StepShape& shape) const {
  Terms t = terms(shape);
  double ms = base_ms(shape.rows);
  for (std::size_t i = 0; i < kTerms; ++i) ms += weight_[i] * t[i];
  return ms;
}

double CostModel::factor(int rows) const {
  if (sizes_.empty()) return 1.0;
  double place = place_of(rows);
  auto above = sizes_.lower_bound(static_cast<int>(std::ceil(place)));
  if (above == sizes_.end()) return sizes_.rbegin()->second.factor;
  if (above == sizes_.begin() || above->first <= place) return above->second.factor;
  auto below = std::prev(above);
  double share = (place - below->first) / (above->first - below->first);
  return below->second.factor + share * (above->second.factor - below->second.factor);
}

bool CostModel::knows(int rows) const {
  auto size = sizes_.find(static_cast<int>(std::lround(place_of(rows))));
  return size != sizes_.end() && size->second.num_seen >= kKnownFrom &&
         num_observed_ - size->second.last_seen < kKnownFor;
}

double CostModel::predict(const StepShape& shape) const {
  return smooth(shape) * factor(shape.rows);
}

void CostModel::observe(const StepShape& shape, double forward_ms) {
  if (!(forward_ms > 0.0)) return;
  if (num_observed_ == 0 && tiers_.empty()) adopt_scale(forward_ms / predict(shape));
  double off = std::abs(predict(shape) - forward_ms) / forward_ms;
  error_ = num_observed_ == 0 ? off : 0.95 * error_ + 0.05 * off;
  ++num_observed_;
  if (knows(shape.rows)) forward_ms = std::min(forward_ms, kHeldUp * predict(shape));
  // Relative errors count: a step of 2 ms must fit as well as one of 200.
  Terms t = terms(shape);
  double target = (forward_ms - base_ms(shape.rows)) / forward_ms;
  for (std::size_t i = 0; i < kTerms; ++i) t[i] /= forward_ms;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      double prior = i == j ? kPriorWeight * (1.0 - kForgetting) : 0.0;  // the prior is not forgotten
      square_[i][j] = kForgetting * square_[i][j] + prior + t[i] * t[j];
    }
    double prior_pull = kPriorWeight * (1.0 - kForgetting) * (tiers_.empty() ? 1.0 : 0.0);
    right_[i] = kForgetting * right_[i] + prior_pull + t[i] * target;
  }
  solve();
  learn_size(shape.rows, forward_ms / std::max(smooth(shape), 1e-9));
}

void CostModel::adopt_scale(double ratio) {
  for (double& scale : scale_) scale *= ratio;
}

void CostModel::learn_size(int rows, double ratio) {
  Size& size = sizes_[static_cast<int>(std::lround(place_of(rows)))];
  size.last_seen = num_observed_;
  ++size.num_seen;
  if (num_observed_ < kKneesFrom) return;
  double rate = std::max(kFactorRate, 1.0 / size.num_seen);
  size.factor += rate * (std::clamp(ratio, size.factor / kLargestJump, size.factor * kLargestJump) - size.factor);
}

// Least squares with non-negative unknowns: four of them, so every subset that may be positive is solved outright. The
// terms are too much alike (a row pulls experts) for descent to converge.
void CostModel::solve() {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned subset = 0; subset < 1u << kTerms; ++subset) {
    Terms x{};
    if (!solve_subset(subset, x) || *std::min_element(x.begin(), x.end()) < 0.0) continue;
    double value = 0.0;  // x' S x / 2 - r' x
    for (std::size_t i = 0; i < kTerms; ++i) {
      value -= right_[i] * x[i];
      for (std::size_t j = 0; j < kTerms; ++j) value += 0.5 * square_[i][j] * x[i] * x[j];
    }
    if (value < best) best = value, weight_ = x;
  }
}

// Cholesky on the rows and columns in `subset`; false if they are dependent.
bool CostModel::solve_subset(unsigned subset, Terms& x) const {
  std::array<std::array<double, kTerms>, kTerms> l{};
  Terms y{};
  auto is_in = [subset](std::size_t i) { return (subset >> i & 1) != 0; };
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (!is_in(i)) continue;
    for (std::size_t j = 0; j <= i; ++j) {
      if (!is_in(j)) continue;
      double sum = square_[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      if (i == j && !(sum > 1e-12 * square_[i][i])) return false;
      l[i][j] = i == j ? std::sqrt(sum) : sum / l[j][j];
    }
    double sum = right_[i];
    for (std::size_t k = 0; k < i; ++k) sum -= l[i][k] * y[k];
    y[i] = sum / l[i][i];
  }
  for (std::size_t i = kTerms; i-- > 0;) {
    if (!is_in(i)) continue;
    double sum = y[i];
    for (std::size_t k = i + 1; k < kTerms; ++k) sum -= l[k][i] * x[k];
    x[i] = sum / l[i][i];
  }
  return true;
}

std::vector<double> CostModel::table(int num_seqs, int max_draft, double context_bytes, double fixed_ms) const {
  std::vector<double> cost;
  for (int rows = num_seqs; rows <= num_seqs * (1 + max_draft); ++rows) {
    bool exists = tiers_.empty() || rows <= tiers_.back().rows;
    cost.push_back(exists ? predict({rows, context_bytes}) + fixed_ms : 0.0);
  }
  return cost;
}

void SamplerTime::observe(int num_seqs, double ms) {
  for (std::deque<double>* history : {&by_size_[num_seqs], &all_}) {
    history->push_back(ms);
    if (history->size() > kSamplerHistory) history->pop_front();
  }
}

double SamplerTime::predict(int num_seqs) const {
  auto same = by_size_.find(num_seqs);
  if (same != by_size_.end() && same->second.size() >= least_)
    return median({same->second.begin(), same->second.end()});
  return all_.size() >= least_ ? median({all_.begin(), all_.end()}) : 0.0;
}

void LiveSlope::observe(int tier_rows, double ms) {
  last_.emplace_back(tier_rows, ms);
  if (last_.size() > kSlopeHistory) last_.pop_front();
}

double LiveSlope::predict() const {
  std::vector<double> medians;
  for (const Tier& tier : profile_) {
    std::vector<double> slopes;
    for (auto [rows, ms] : last_)
      if (rows == tier.rows) slopes.push_back((ms - tier.ms) / rows);
    if (slopes.size() >= kSlopeLeast) medians.push_back(median(std::move(slopes)));
  }
  return medians.empty() ? 0.0 : std::max(0.0, median(std::move(medians)));
}

std::vector<int> step_sizes(int max_size, int interval) {
  DI_CHECK(max_size > 0 && interval > 0, "max size {}, interval {}", max_size, interval);
  std::vector<int> sizes;
  for (int size = 1; size < interval && size < max_size; size *= 2) sizes.push_back(size);
  for (int size = interval; size < max_size; size += interval) sizes.push_back(size);
  sizes.push_back(max_size);
  return sizes;
}

}  // namespace deepinfer::sched
