#include "sampling/distribution.h"

#include <limits>

#include "base/check.h"

namespace deepinfer::sampling {
namespace {

// Walks p by ascending id beside d: f(id, p(id), d(id)) for every id with p(id) > 0.
template <typename F>
void each_pair(const Distribution& p, const Distribution& d, F&& f) {
  double scale = 1.0 / static_cast<double>(d.total);
  int at = 0;
  p.each([&](int32_t id, double p_of_id) {
    float w;
    if (d.is_dense) {
      w = d.weight(id);
    } else {
      while (at < d.count && d.ids[static_cast<std::size_t>(at)] < id) ++at;
      w = at < d.count && d.ids[static_cast<std::size_t>(at)] == id ? d.weights[static_cast<std::size_t>(at)] : 0.0f;
    }
    f(id, p_of_id, static_cast<double>(mass_of(w)) * scale);
  });
}

}  // namespace

void Distribution::set_one_hot(int32_t id) {
  if (ids.empty()) ids.resize(1);
  if (weights.empty()) weights.resize(1);
  ids[0] = id;
  weights[0] = 1.0f;
  count = 1;
  is_dense = false;
  total = mass_of(1.0f);
}

void Distribution::set_from(const float* relative, int vocab) {
  auto room = static_cast<std::size_t>(vocab);
  if (ids.size() < room) ids.resize(room);
  if (weights.size() < room) weights.resize(room);
  float largest = 0.0f;
  for (int v = 0; v < vocab; ++v) largest = std::max(largest, relative[v]);
  count = 0;
  is_dense = false;
  total = 0;
  for (int v = 0; v < vocab; ++v) {
    if (!(relative[v] > 0.0f)) continue;
    ids[static_cast<std::size_t>(count)] = v;
    weights[static_cast<std::size_t>(count++)] = relative[v] / largest;
    total += mass_of(relative[v] / largest);
  }
}

void Distribution::copy_from(const Distribution& other) {
  auto n = static_cast<std::size_t>(other.count);
  if (weights.size() < n) weights.resize(n);
  std::copy_n(other.weights.begin(), n, weights.begin());
  if (!other.is_dense) {
    if (ids.size() < n) ids.resize(n);
    std::copy_n(other.ids.begin(), n, ids.begin());
  }
  count = other.count;
  is_dense = other.is_dense;
  total = other.total;
}

int32_t draw_race(const Distribution& law, const Stream& stream, Purpose purpose) {
  int at = row_kernels().race(Race::of(stream, purpose), law.is_dense ? nullptr : law.ids.data(), law.weights.data(),
                              law.count);
  DI_CHECK(at >= 0, "a law of {} ids has no winner", law.count);
  return law.id_at(at);
}

int32_t race_winner(const Distribution& law, const float* clocks) {
  float best = std::numeric_limits<float>::infinity();
  int32_t winner = -1;
  for (int i = 0; i < law.count; ++i) {
    float w = law.weights[static_cast<std::size_t>(i)];
    int32_t id = law.id_at(i);
    if (w > 0.0f && clocks[id] / w < best) best = clocks[id] / w, winner = id;
  }
  return winner;
}

int32_t draw_inverse(const Distribution& law, float u) {
  auto target = static_cast<uint64_t>(static_cast<double>(u) * static_cast<double>(law.total));
  uint64_t sum = 0;
  int last = -1;
  for (int i = 0; i < law.count; ++i) {
    uint64_t m = mass_of(law.weights[static_cast<std::size_t>(i)]);
    if (m == 0) continue;
    last = i;
    if ((sum += m) > target) break;
  }
  DI_CHECK(last >= 0, "a law of {} ids has no mass", law.count);
  return law.id_at(last);
}

double overlap(const Distribution& p, const Distribution& d, double alpha) {
  double sum = 0.0;
  if (d.is_dense || d.count > p.count) {
    each_pair(p, d, [&](int32_t, double a, double b) { sum += std::min(a, alpha * b); });
  } else {  // the shorter list leads: a truncated draft law against a full target row
    each_pair(d, p, [&](int32_t, double b, double a) { sum += std::min(a, alpha * b); });
  }
  return std::min(sum, 1.0);
}

int32_t draw_residual(const Distribution& p, const Distribution& d, float u, double* mass, double scale, double alpha) {
  double sum = 0.0;
  each_pair(p, d, [&](int32_t, double a, double b) { sum += std::max(0.0, scale * a - alpha * b); });
  *mass = sum;
  if (!(sum > 0.0)) return -1;
  double target = static_cast<double>(u) * sum, walked = 0.0;
  int32_t chosen = -1;
  bool is_found = false;
  each_pair(p, d, [&](int32_t id, double a, double b) {
    double r = scale * a - alpha * b;
    if (is_found || !(r > 0.0)) return;
    walked += r;
    chosen = id;
    is_found = walked > target;
  });
  return chosen;
}

}  // namespace deepinfer::sampling
