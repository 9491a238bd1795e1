// The law of one row after all filters, and the draws from it.
//
//   sparse   `ids` ascending and their `weights`: after top-p, top-k, min-p or arg-max
//   dense    `weights` by id, `ids` unused: nothing was filtered
//
// Weights are relative to the largest one (1). Probability = mass / total, both integers (row_kernels.h), so
// probabilities sum to one exactly. The buffers grow to the longest row once and are then reused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sampling/philox.h"
#include "sampling/row_kernels.h"

namespace deepinfer::sampling {

struct Distribution {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int count = 0;
  bool is_dense = false;
  uint64_t total = 0;

  void set_one_hot(int32_t id);
  // From probabilities or any relative weights by id; the largest becomes 1. Entries of 0 are left out.
  void set_from(const float* relative, int vocab);
  void copy_from(const Distribution& other);  // keeps this buffer's memory

  float weight(int32_t id) const {
    if (is_dense) return id >= 0 && id < count ? weights[static_cast<std::size_t>(id)] : 0.0f;
    auto end = ids.begin() + count, at = std::lower_bound(ids.begin(), end, id);
    return at != end && *at == id ? weights[static_cast<std::size_t>(at - ids.begin())] : 0.0f;
  }
  double probability(int32_t id) const { return static_cast<double>(mass_of(weight(id))) / static_cast<double>(total); }
  int32_t id_at(int position) const { return is_dense ? position : ids[static_cast<std::size_t>(position)]; }

  template <typename F>  // f(id, probability) by ascending id
  void each(F&& f) const {
    double scale = 1.0 / static_cast<double>(total);
    for (int i = 0; i < count; ++i)
      if (uint64_t m = mass_of(weights[static_cast<std::size_t>(i)]); m > 0)
        f(id_at(i), static_cast<double>(m) * scale);
  }
};

// The winner of the race with per-token clocks: the same token from the same stream whatever else is in the step.
int32_t draw_race(const Distribution& law, const Stream& stream, Purpose purpose);
// The winner for given clocks by id (tests, and the definition of level B): smallest clock / weight, lower id on ties.
int32_t race_winner(const Distribution& law, const float* clocks);
// The first id, in ascending order, at which the cumulative probability exceeds u in [0, 1).
int32_t draw_inverse(const Distribution& law, float u);

// sum over v of min(p(v), alpha d(v)): the probability that a token drawn from d is accepted.
double overlap(const Distribution& p, const Distribution& d, double alpha = 1.0);
// A draw from max(0, scale p - alpha d), normalised, by inversion in id order; *mass receives its sum before
// normalising. Returns -1 when nothing is left.
int32_t draw_residual(const Distribution& p, const Distribution& d, float u, double* mass, double scale = 1.0,
                      double alpha = 1.0);

}  // namespace deepinfer::sampling
