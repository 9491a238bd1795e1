#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBins = 2048;  // 11 bits of the 32-bit key a pass

std::size_t at(int64_t i) {
  return static_cast<std::size_t>(i);
}

// Ascending keys for ascending logits; -0 and +0 are equal.
uint32_t key_of(float logit) {
  uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The edits of single logits, undone when the row is done.
class Edits {
 public:
  Edits(const Row& row, Workspace& ws) : logits_(row.logits), saved_(ws.saved) {
    saved_.clear();
    const RowParams& p = *row.params;
    if (p.has_penalties()) penalise(row);
    for (const Bias& b : p.bias) set(b.id, logits_[b.id] + b.value);
    for (int32_t id : p.banned)
      if (id < row.vocab) set(id, -kInfinity);
    if (p.bans_first_eos && row.output.empty() && p.eos_id >= 0) set(p.eos_id, -kInfinity);
    for (const auto& word : p.bad_words) {
      std::size_t head = word.size() - 1;
      if (row.output.size() >= head && std::equal(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(head),
                                                  row.output.end() - static_cast<std::ptrdiff_t>(head)))
        set(word.back(), -kInfinity);
    }
  }
  ~Edits() { restore(); }
  Edits(const Edits&) = delete;
  Edits& operator=(const Edits&) = delete;

 private:
  void set(int32_t id, float value) {
    saved_.push_back({id, logits_[id]});
    logits_[id] = value;
  }
  void penalise(const Row& row) {
    DI_CHECK(row.counts != nullptr, "penalties without token counts");
    const RowParams& p = *row.params;
    for (const TokenCounts::Entry& e : row.counts->entries()) {
      if ((e.output_count == 0 && !e.is_in_prompt) || e.id >= row.vocab) continue;
      float z = logits_[e.id];
      z = z > 0.0f ? z / p.repetition : z * p.repetition;
      if (e.output_count > 0) z -= p.frequency * static_cast<float>(e.output_count) + p.presence;
      set(e.id, z);
    }
  }
  void restore() noexcept {
    for (std::size_t i = saved_.size(); i > 0; --i) logits_[saved_[i - 1].id] = saved_[i - 1].value;
    saved_.clear();
  }

  float* logits_;
  std::vector<Bias>& saved_;
};

// Smallest logit that is among the `count` best for certain: there are that many blocks whose best reaches it.
float cut_for_count(Workspace& ws, int vocab, int count) {
  int blocks = ceil_div(vocab, kBlock);
  if (count > blocks) return -kInfinity;
  auto begin = ws.block_max.begin();
  std::nth_element(begin, begin + (count - 1), begin + blocks, std::greater<>());
  return ws.block_max[at(count - 1)];
}

struct Cut {
  uint32_t key = 0;                                        // candidates above it stay
  int64_t num_ties = std::numeric_limits<int64_t>::max();  // and so many of those at it, lowest ids first
};

// Where the prefix ends that has at most `max_count` candidates and only such with a mass before them <= mass_limit.
Cut find_cut(Workspace& ws, int count, int64_t max_count, uint64_t mass_limit) {
  for (int i = 0; i < count; ++i) {
    ws.keys[at(i)] = key_of(ws.logits[at(i)]);
    ws.masses[at(i)] = mass_of(ws.weights[at(i)]);
  }
  int64_t count_before = 0;
  uint64_t mass_before = 0;
  uint32_t prefix = 0;
  for (int shift : {21, 10, 0}) {
    int bits = shift == 0 ? 10 : 11;
    std::fill_n(ws.bin_count.begin(), kBins, 0);
    std::fill_n(ws.bin_mass.begin(), kBins, 0);
    for (int i = 0; i < count; ++i) {
      auto bin = at((ws.keys[at(i)] >> shift) & ((1u << bits) - 1));
      ++ws.bin_count[bin];
      ws.bin_mass[bin] += ws.masses[at(i)];
    }
    int bin = (1 << bits) - 1;
    for (; bin >= 0; --bin) {
      if (count_before + ws.bin_count[at(bin)] > max_count || mass_before + ws.bin_mass[at(bin)] > mass_limit) break;
      count_before += ws.bin_count[at(bin)];
      mass_before += ws.bin_mass[at(bin)];
    }
    if (bin < 0) return {};  // possible on the first pass only: everything stays
    prefix |= static_cast<uint32_t>(bin) << shift;
    if (shift == 0) break;
    int inside = 0;  // go on with the candidates of this bin
    for (int i = 0; i < count; ++i)
      if (((ws.keys[at(i)] >> shift) & ((1u << bits) - 1)) == static_cast<uint32_t>(bin)) {
        ws.keys[at(inside)] = ws.keys[at(i)];
        ws.masses[at(inside++)] = ws.masses[at(i)];
      }
    count = inside;
  }
  uint64_t mass_each = ws.bin_mass[at(prefix & 1023)] / at(std::max(1, ws.bin_count[at(prefix & 1023)]));
  int64_t by_count = max_count - count_before;
  int64_t by_mass = mass_each == 0 ? by_count : static_cast<int64_t>((mass_limit - mass_before) / mass_each) + 1;
  return {prefix, std::min(by_count, by_mass)};
}

// Keeps the prefix of the candidates in ws (ascending ids stay ascending); returns how many and their mass.
int keep_prefix(Workspace& ws, int count, int64_t max_count, uint64_t mass_limit, uint64_t* total) {
  Cut cut = find_cut(ws, count, max_count, mass_limit);
  int kept = 0;
  *total = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t key = key_of(ws.logits[at(i)]);
    if (key < cut.key || (key == cut.key && cut.num_ties-- <= 0)) continue;
    ws.ids[at(kept)] = ws.ids[at(i)];
    ws.logits[at(kept)] = ws.logits[at(i)];
    ws.weights[at(kept)] = ws.weights[at(i)];
    *total += mass_of(ws.weights[at(kept++)]);
  }
  return kept;
}

constexpr int64_t kNoCount = std::numeric_limits<int64_t>::max() / 2;
constexpr uint64_t kNoMass = std::numeric_limits<uint64_t>::max() / 2;

uint64_t mass_limit_of(double top_p, uint64_t total) {
  return top_p >= 1.0 ? kNoMass : static_cast<uint64_t>(top_p * static_cast<double>(total));
}

// Logits below this cannot survive the filters (a bound, not the cut itself).
float safe_cut(const RowParams& p, Workspace& ws, int vocab, float max) {
  float cut = -kInfinity;
  int limit = p.top_k > 0 && p.force_top_k > 0 ? std::min(p.top_k, p.force_top_k) : std::max(p.top_k, p.force_top_k);
  if (p.force_top_k > 0) limit = p.force_top_k;  // the others' masses are measured within these
  if (limit > 0) cut = cut_for_count(ws, vocab, limit);
  if (p.force_top_k > 0) return cut;
  // Ids lighter than (1 - p) / (2 vocab) of the largest hold less than 1 - p together. 1e-3 covers the rounding of x.
  double least = std::max(p.top_p < 1.0 ? (1.0 - p.top_p) / (2.0 * vocab) : 0.0, static_cast<double>(p.min_p));
  if (least > 0.0)
    cut =
        std::max(cut, max + static_cast<float>((std::log(least) - 1e-3) / static_cast<double>(p.inverse_temperature)));
  return cut;
}

void filter(const Row& row, float max, Workspace& ws, Distribution* law) {
  const RowParams& p = *row.params;
  float cut = safe_cut(p, ws, row.vocab, max);
  uint64_t total = 0;
  int count = row_kernels().gather({row.logits, row.mask, row.vocab, max, p.inverse_temperature, cut, ws.ids.data(),
                                    ws.logits.data(), ws.weights.data()},
                                   &total);
  if (p.force_top_k > 0) count = keep_prefix(ws, count, p.force_top_k, kNoMass, &total);
  uint64_t mass_limit = mass_limit_of(p.top_p, total);
  if (p.min_p > 0.0f) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (ws.weights[at(i)] < p.min_p) continue;
      ws.ids[at(kept)] = ws.ids[at(i)];
      ws.logits[at(kept)] = ws.logits[at(i)];
      ws.weights[at(kept++)] = ws.weights[at(i)];
    }
    count = kept;
  }
  count = keep_prefix(ws, count, p.top_k > 0 ? p.top_k : kNoCount, mass_limit, &law->total);
  law->count = count;
  law->is_dense = false;
  std::copy_n(ws.ids.begin(), count, law->ids.begin());
  std::copy_n(ws.weights.begin(), count, law->weights.begin());
}

// log of sum exp((z - max) / T) from the integer mass.
double log_of(uint64_t total) {
  return std::log(static_cast<double>(total) * 0x1p-40);
}

void top_raw(const Row& row, double log_sum, int wanted, Workspace& ws, std::vector<TokenLogprob>* top) {
  float max = -kInfinity;
  bool is_valid = true;
  max = row_kernels().max(row.logits, nullptr, row.vocab, ws.block_max.data(), &is_valid);
  uint64_t total = 0;
  float cut = cut_for_count(ws, row.vocab, wanted);
  int count = row_kernels().gather(
      {row.logits, nullptr, row.vocab, max, 1.0f, cut, ws.ids.data(), ws.logits.data(), ws.weights.data()}, &total);
  count = keep_prefix(ws, count, wanted, kNoMass, &total);
  for (int i = 0; i < count; ++i)
    top->push_back({ws.ids[at(i)], static_cast<float>(static_cast<double>(ws.logits[at(i)]) - log_sum)});
}

void top_processed(const Distribution& law, int wanted, std::vector<TokenLogprob>* top) {
  double log_total = log_of(law.total);
  for (int i = 0; i < law.count; ++i) {
    float w = law.weights[at(i)];
    if (!(w > 0.0f)) continue;
    float logprob = static_cast<float>(std::log(static_cast<double>(w)) - log_total);
    if (static_cast<int>(top->size()) == wanted && logprob <= top->back().logprob) continue;
    auto place = std::upper_bound(top->begin(), top->end(), logprob,
                                  [](float v, const TokenLogprob& t) { return v > t.logprob; });
    if (static_cast<int>(top->size()) == wanted) {
      auto index = place - top->begin();
      top->pop_back();
      place = top->begin() + index;
    }
    top->insert(place, {law.id_at(i), logprob});
  }
}

}  // namespace

void Workspace::reserve(int vocab) {
  std::size_t room = at(vocab) + kSlack;
  if (ids.size() >= room) return;
  block_max.resize(at(ceil_div(vocab, kBlock)));
  ids.resize(room);
  logits.resize(room);
  weights.resize(room);
  keys.resize(room);
  masses.resize(room);
  bin_mass.resize(kBins);
  bin_count.resize(kBins);
  saved.reserve(1024);
}

Result<void> shape_row(const Row& row, Workspace& ws, Distribution* law) {
  const RowParams& p = *row.params;
  ws.reserve(row.vocab);
  std::size_t room = at(row.vocab) + kSlack;
  if (law->weights.size() < room) law->weights.resize(room);
  if (law->ids.size() < room) law->ids.resize(room);
  Edits edits(row, ws);
  bool is_valid = true;
  bool needs_blocks = p.top_k > 0 || p.force_top_k > 0;
  float max =
      row_kernels().max(row.logits, row.mask, row.vocab, needs_blocks ? ws.block_max.data() : nullptr, &is_valid);
  if (!is_valid) return fail(Code::kInternal, "the logits hold NaN or +inf");
  if (max == -kInfinity) {
    if (row.mask != nullptr) return fail(Code::kInvalid, "the grammar and the banned ids leave no token");
    return fail(Code::kInternal, "all logits are -inf");
  }
  if (p.is_greedy) {
    law->set_one_hot(row_kernels().first_equal(row.logits, row.mask, row.vocab, max));
  } else if (p.top_p < 1.0 || p.top_k > 0 || p.min_p > 0.0f || p.force_top_k > 0) {
    filter(row, max, ws, law);
  } else {
    law->is_dense = true;
    law->count = row.vocab;
    law->total = row_kernels().weigh(
        {row.logits, row.mask, row.vocab, max, p.inverse_temperature, 0.0f, nullptr, nullptr, law->weights.data()});
  }
  return {};
}

void describe(const Row& row, const Distribution& law, int32_t token, Workspace& ws, TokenReport* report) {
  const RowParams& p = *row.params;
  report->token = token;
  report->top.clear();
  report->raw_logprob = report->processed_logprob = 0.0f;
  report->smaller_mass = -1.0f;
  if (p.wants_processed_logprob) {
    float w = law.weight(token);
    report->processed_logprob =
        w > 0.0f ? static_cast<float>(std::log(static_cast<double>(w)) - log_of(law.total)) : -kInfinity;
  }
  if (p.wants_smaller_mass) {
    double own = law.probability(token), sum = 0.0;
    law.each([&](int32_t id, double q) { sum += q < own || (q == own && id <= token) ? q : 0.0; });
    report->smaller_mass = static_cast<float>(sum);
  }
  if (p.wants_raw_logprob) {
    ws.reserve(row.vocab);
    bool is_valid = true;
    float max = row_kernels().max(row.logits, nullptr, row.vocab, nullptr, &is_valid);
    uint64_t total = 0;
    row_kernels().gather(
        {row.logits, nullptr, row.vocab, max, 1.0f, kInfinity, ws.ids.data(), ws.logits.data(), ws.weights.data()},
        &total);
    double log_sum = static_cast<double>(max) + log_of(total);
    report->raw_logprob = static_cast<float>(static_cast<double>(row.logits[token]) - log_sum);
    if (p.top_logprobs > 0 && p.logprob_kind == LogprobKind::kRaw)
      top_raw(row, log_sum, p.top_logprobs, ws, &report->top);
  }
  if (p.top_logprobs > 0 && p.logprob_kind == LogprobKind::kProcessed) top_processed(law, p.top_logprobs, &report->top);
  std::stable_sort(report->top.begin(), report->top.end(),
                   [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob > b.logprob; });
}

Result<void> sample_row(const Row& row, const Stream& stream, int32_t forced, Workspace& ws, TokenReport* report) {
  DI_TRY_VOID(shape_row(row, ws, &ws.law));
  int32_t token = forced >= 0         ? forced
                  : ws.law.count == 1 ? ws.law.id_at(0)
                                      : draw_race(ws.law, stream, Purpose::kNoise);
  describe(row, ws.law, token, ws, report);
  return {};
}

RowParams draft_params(const RowParams& params, int max_support) {
  RowParams draft = params;
  if (!draft.is_greedy) draft.top_k = draft.top_k > 0 ? std::min(draft.top_k, max_support) : max_support;
  return draft;
}

int32_t draw_draft(const Distribution& law, const Stream& stream, bool uses_common_noise) {
  if (law.count == 1) return law.id_at(0);
  if (uses_common_noise) return draw_race(law, stream, Purpose::kNoise);
  return draw_inverse(law, uniform(stream, Purpose::kDraft));
}

}  // namespace deepinfer::sampling
