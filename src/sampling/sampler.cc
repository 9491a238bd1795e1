#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kFirstReach = 6.0f;  // e^-6 of the largest probability
constexpr int kBins = 2048, kSortBelow = 96;
constexpr int kDenseFrom =
    6;  // a law of more than 1 / 6 of the ids is stored by id: four ids then share a Philox block

std::size_t at(int64_t i) {
  return static_cast<std::size_t>(i);
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
  int blocks = ceil_div(vocab, kBlockIds);
  if (count > blocks) return -kInfinity;
  auto begin = ws.block_max.begin();
  std::nth_element(begin, begin + (count - 1), begin + blocks, std::greater<>());
  return ws.block_max[at(count - 1)];
}

// The end of a prefix of the order (logit descending, id ascending).
struct Cut {
  float logit = -kInfinity;                                // candidates above it stay
  int64_t num_ties = std::numeric_limits<int64_t>::max();  // and so many of those at it, lowest ids first
};

// How far a prefix may still grow.
struct Budget {
  int64_t count;
  uint64_t mass;  // a candidate stays if the mass before it is not above this

  bool holds(int64_t more, uint64_t more_mass) const { return more <= count && more_mass <= mass; }
  void take(int64_t more, uint64_t more_mass) { count -= more, mass -= more_mass; }
};

// The cut among `members` (indices of candidates) that do not all fit: by sorting, or with many equal logits by key
// bits.
Cut cut_inside(Workspace& ws, std::span<int32_t> members, Budget left) {
  std::sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
    float x = ws.logits[at(a)], y = ws.logits[at(b)];
    return x != y ? x > y : a < b;
  });
  for (std::size_t begin = 0; begin < members.size();) {
    float logit = ws.logits[at(members[begin])];
    std::size_t end = begin + 1;
    while (end < members.size() && ws.logits[at(members[end])] == logit) ++end;
    auto ties = static_cast<int64_t>(end - begin);
    uint64_t each = mass_of(ws.weights[at(members[begin])]);
    if (!left.holds(ties, each * static_cast<uint64_t>(ties))) {
      int64_t by_mass = each == 0 ? left.count : static_cast<int64_t>(left.mass / each) + 1;
      return {logit, std::min(left.count, by_mass)};
    }
    left.take(ties, each * static_cast<uint64_t>(ties));
    begin = end;
  }
  return {};
}

// Bins of equal width in the logit spread any row evenly; a bin's members are sorted only where the prefix ends.
Cut find_cut(Workspace& ws, int count, Budget left) {
  if (count <= kSortBelow) {
    for (int i = 0; i < count; ++i) ws.members[at(i)] = i;
    return cut_inside(ws, {ws.members.data(), at(count)}, left);
  }
  float high = -kInfinity, low = kInfinity;
  for (int i = 0; i < count; ++i) {
    high = std::max(high, ws.logits[at(i)]);
    low = std::min(low, ws.logits[at(i)]);
  }
  if (!(low > -kInfinity)) low = high - 100.0f;  // -inf falls into the last bin like everything that far below
  float scale = high > low ? (kBins - 1) / (high - low) : 0.0f;
  auto bin_of = [&](int i) {
    return at(static_cast<int>(std::min((high - ws.logits[at(i)]) * scale, static_cast<float>(kBins - 1))));
  };
  std::fill(ws.bins.begin(), ws.bins.end(), Workspace::Bin{});
  for (int i = 0; i < count; ++i) {
    Workspace::Bin& bin = ws.bins[bin_of(i)];
    ++bin.count;
    bin.mass += mass_of(ws.weights[at(i)]);
  }
  std::size_t bin = 0;
  for (; bin < kBins && left.holds(ws.bins[bin].count, ws.bins[bin].mass); ++bin)
    left.take(ws.bins[bin].count, ws.bins[bin].mass);
  if (bin == kBins) return {};
  int members = 0;
  for (int i = 0; i < count; ++i)
    if (bin_of(i) == bin) ws.members[at(members++)] = i;
  return cut_inside(ws, {ws.members.data(), at(members)}, left);
}

// Keeps the prefix of the candidates in ws (ascending ids stay ascending); returns how many and their mass.
int keep_prefix(Workspace& ws, int count, int64_t max_count, uint64_t mass_limit, uint64_t* total) {
  Cut cut = find_cut(ws, count, {max_count, mass_limit});
  int kept = 0;
  uint64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    float logit = ws.logits[at(i)], weight = ws.weights[at(i)];
    ws.ids[at(kept)] = ws.ids[at(i)];
    ws.logits[at(kept)] = logit;
    ws.weights[at(kept)] = weight;
    bool stays = logit > cut.logit || (logit == cut.logit && cut.num_ties-- > 0);
    kept += stays;
    sum += stays ? mass_of(weight) : 0;
  }
  *total = sum;
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

// Candidates in ws for the filters: all ids with logits from some cut on, among them every id that can survive.
int gather_candidates(const Row& row, float max, Workspace& ws, uint64_t* total) {
  const RowParams& p = *row.params;
  GatherParams g{
      row.logits,    row.mask,         row.vocab,        max, p.inverse_temperature, safe_cut(p, ws, row.vocab, max),
      ws.ids.data(), ws.logits.data(), ws.weights.data()};
  // Most rows reach top-p within a few hundred ids: try those first. Candidates are a prefix of the order, so they are
  // enough once they hold more than top-p, or as many as top-k wants.
  float first_cut = max - kFirstReach / p.inverse_temperature;
  if (p.top_p < 1.0 && p.force_top_k == 0 && first_cut > g.cut) {
    float last_cut = std::exchange(g.cut, first_cut);
    int count = row_kernels().gather(g, total);
    uint64_t mass = 0;
    for (int i = 0; i < count; ++i) mass += mass_of(ws.weights[at(i)]);
    if (mass > mass_limit_of(p.top_p, *total) || (p.top_k > 0 && count >= p.top_k)) return count;
    g.cut = last_cut;
  }
  return row_kernels().gather(g, total);
}

void filter(const Row& row, float max, Workspace& ws, Distribution* law) {
  const RowParams& p = *row.params;
  uint64_t total = 0;
  int count = gather_candidates(row, max, ws, &total);
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
  law->is_dense = count > std::max(kBlockIds, row.vocab / kDenseFrom);
  if (law->is_dense) {
    law->count = row.vocab;
    std::fill_n(law->weights.begin(), row.vocab, 0.0f);
    for (int i = 0; i < count; ++i) law->weights[at(ws.ids[at(i)])] = ws.weights[at(i)];
    return;
  }
  law->count = count;
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
  block_max.resize(at(ceil_div(vocab, kBlockIds)));
  ids.resize(room);
  logits.resize(room);
  weights.resize(room);
  members.resize(room);
  bins.resize(kBins);
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

}  // namespace deepinfer::sampling
