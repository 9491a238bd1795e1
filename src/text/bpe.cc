#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace deepinfer::text {
namespace {

// At this length both procedures take about the same time on random letters.
constexpr std::size_t kShort = 48;
// A table of 512 x 512 ranks; the released file has its 256 bytes at ids 3 to 258.
constexpr int32_t kDirectIds = 512;
constexpr uint64_t kEmpty = ~uint64_t{0};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 20 | static_cast<uint64_t>(right);
}
// Fibonacci hashing: the multiplier is 2^64 / golden ratio.
uint64_t hash(uint64_t key) {
  return key * 0x9E3779B97F4A7C15u;
}

}  // namespace

Result<MergeTable> MergeTable::build(std::span<const Merge> merges) {
  if (merges.size() > static_cast<std::size_t>(kMaxMerges)) {
    return fail(Code::kUnsupported, "{} merges exceed the limit of {}", merges.size(), kMaxMerges);
  }
  MergeTable table;
  std::size_t size = std::bit_ceil(merges.size() * 2 + 2);
  table.slots_.assign(size, kEmpty);
  table.shift_ = 64 - std::countr_zero(size);
  std::size_t num_bits = std::bit_ceil(merges.size() * 8 + 64);  // an eighth of the bits set
  table.filter_.assign(num_bits / 64, 0);
  table.filter_shift_ = 64 - std::countr_zero(num_bits);
  table.results_.reserve(merges.size());
  table.direct_.assign(std::size_t{kDirectIds} * kDirectIds, kNone);
  for (std::size_t i = 0; i < merges.size(); ++i) {
    uint64_t key = pair_key(merges[i].left, merges[i].right);
    std::size_t slot = hash(key) >> table.shift_;
    for (; table.slots_[slot] != kEmpty; slot = (slot + 1) & (size - 1)) {
      if (table.slots_[slot] >> 24 == key) {
        return fail(Code::kCorrupt, "merge {} repeats merge {}", i, table.slots_[slot] & kNone);
      }
    }
    table.slots_[slot] = key << 24 | i;
    uint64_t bit = hash(key) >> table.filter_shift_;
    table.filter_[bit / 64] |= uint64_t{1} << bit % 64;
    table.results_.push_back(merges[i].result);
    if (merges[i].left < kDirectIds && merges[i].right < kDirectIds) {
      table.direct_[static_cast<std::size_t>(merges[i].left * kDirectIds + merges[i].right)] = static_cast<uint32_t>(i);
    }
  }
  return table;
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  uint64_t key = pair_key(left, right), h = hash(key);
  uint64_t bit = h >> filter_shift_;
  if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return kNone;
  std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = h >> shift_;; slot = (slot + 1) & mask) {
    uint64_t entry = slots_[slot];
    if (entry >> 24 == key && entry != kEmpty) return static_cast<uint32_t>(entry & kNone);
    if (entry == kEmpty) return kNone;
  }
}

uint32_t MergeTable::first_rank(int32_t left, int32_t right) const {
  if (left >= kDirectIds || right >= kDirectIds) return rank(left, right);
  return direct_[static_cast<std::size_t>(left * kDirectIds + right)];
}

int64_t MergeTable::apply(std::span<int32_t> ids, int64_t* num_steps) const {
  if (ids.size() < 2) return static_cast<int64_t>(ids.size());
  return ids.size() <= kShort ? apply_short(ids) : apply_long(ids, num_steps);
}

int64_t MergeTable::apply_short(std::span<int32_t> ids) const {
  std::array<uint32_t, kShort> ranks;
  std::size_t n = ids.size();
  for (std::size_t i = 0; i + 1 < n; ++i) ranks[i] = first_rank(ids[i], ids[i + 1]);
  while (n > 1) {
    auto end = ranks.begin() + static_cast<std::ptrdiff_t>(n) - 1;
    auto lowest = std::min_element(ranks.begin(), end);
    if (*lowest == kNone) break;
    auto i = static_cast<std::size_t>(lowest - ranks.begin());
    ids[i] = results_[*lowest];
    --n;
    std::memmove(&ids[i + 1], &ids[i + 1] + 1, (n - i - 1) * sizeof(ids[0]));
    std::copy(lowest + 1, end, lowest);
    if (i + 1 < n) ranks[i] = rank(ids[i], ids[i + 1]);
    if (i > 0) ranks[i - 1] = rank(ids[i - 1], ids[i]);
  }
  return static_cast<int64_t>(n);
}

int64_t MergeTable::apply_long(std::span<int32_t> ids, int64_t* num_steps) const {
  struct Link {
    uint32_t before, after;
    uint32_t rank;  // of this and the following id; kNone: no merge, or this one was merged away
  };
  auto n = static_cast<uint32_t>(ids.size());
  std::vector<Link> links(n);
  std::vector<uint64_t> heap;  // rank << 32 | position
  heap.reserve(n);
  auto lowest_first = [](uint64_t a, uint64_t b) { return a > b; };
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t r = i + 1 < n ? first_rank(ids[i], ids[i + 1]) : kNone;
    links[i] = {.before = i - 1, .after = i + 1, .rank = r};
    if (r != kNone) heap.push_back(uint64_t{r} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), lowest_first);
  int64_t steps = n;

  auto update = [&](uint32_t i) {
    uint32_t j = links[i].after;
    links[i].rank = j < n ? rank(ids[i], ids[j]) : kNone;
    if (links[i].rank == kNone) return;
    heap.push_back(uint64_t{links[i].rank} << 32 | i);
    std::push_heap(heap.begin(), heap.end(), lowest_first);
  };
  while (!heap.empty()) {
    ++steps;
    uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), lowest_first);
    heap.pop_back();
    auto i = static_cast<uint32_t>(top), r = static_cast<uint32_t>(top >> 32);
    if (links[i].rank != r) continue;
    uint32_t j = links[i].after;
    ids[i] = results_[r];
    links[j].rank = kNone;
    links[i].after = links[j].after;
    if (links[i].after < n) links[links[i].after].before = i;
    update(i);
    if (i > 0) update(links[i].before);
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i = links[i].after) ids[count++] = ids[i];
  if (num_steps != nullptr) *num_steps += steps;
  return count;
}

}  // namespace deepinfer::text
