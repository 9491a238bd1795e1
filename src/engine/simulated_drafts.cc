#include "engine/simulated_drafts.h"

#include <cmath>
#include <numbers>

namespace deepinfer::engine {
namespace {

using Words = std::array<uint32_t, 4>;

Words words_of(const sampling::Stream& block, int k, uint64_t seed) {
  sampling::Stream own = block;
  own.seed ^= seed * 0x9E3779B97F4A7C15u;  // golden ratio: other seeds, unrelated streams
  return sampling::random_words(own, sampling::Purpose::kDraft, static_cast<uint32_t>(k));
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Tokens of a round of independent drafts.
double tokens_of(double centre, double spread, int num_drafts) {
  double accepted = 0.0, weight = 0.0;
  for (double z = -6.0; z <= 6.0; z += 0.05) {
    double density = std::exp(-z * z / 2.0);
    accepted += density * sigmoid(centre + spread * z), weight += density;
  }
  double survival = 1.0, tokens = 1.0;
  for (int k = 0; k < num_drafts; ++k) tokens += survival *= accepted / weight;
  return tokens;
}

}  // namespace

SimulatedDrafts::SimulatedDrafts(const DraftQuality& quality, int num_drafts) : quality_(quality) {
  double low = -30.0, high = 30.0;
  for (int i = 0; i < 60; ++i) {
    centre_ = (low + high) / 2.0;
    (tokens_of(centre_, quality.spread, num_drafts) < quality.mean_tokens ? low : high) = centre_;
  }
}

float SimulatedDrafts::confidence_logit(const sampling::Stream& block, int k) const {
  Words w = words_of(block, k, quality_.seed);
  auto radius = std::sqrt(-2.0 * std::log(static_cast<double>(sampling::uniform_of(w[0]))));
  double normal = radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(sampling::uniform_of(w[1])));
  return static_cast<float>(centre_ + quality_.spread * normal);
}

double SimulatedDrafts::acceptance(const sampling::Stream& block, int k) const {
  return sigmoid(static_cast<double>(confidence_logit(block, k)));
}

bool SimulatedDrafts::is_accepted(const sampling::Stream& block, int k) const {
  return static_cast<double>(sampling::uniform_of(words_of(block, k, quality_.seed)[2])) < acceptance(block, k);
}

}  // namespace deepinfer::engine
