#include "text/word_table.h"

#include <bit>
#include <cstring>

namespace deepinfer::text {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio

uint64_t load(const char* p, std::size_t n) {
  uint64_t word = 0;
  std::memcpy(&word, p, n);
  return word;
}

uint64_t mix(uint64_t state, uint64_t word) {
  auto product = static_cast<unsigned __int128>(state ^ word) * kMultiplier;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t hash_word(std::string_view word) {
  const char* p = word.data();
  std::size_t n = word.size();
  uint64_t state = n * kMultiplier;
  for (; n > 8; p += 8, n -= 8) state = mix(state, load(p, 8));
  // Fixed sizes compile to single loads.
  uint64_t last = 0;
  if (n == 8) {
    last = load(p, 8);
  } else if (n >= 4) {
    last = load(p, 4) | load(p + n - 4, 4) << 32;
  } else if (n > 0) {
    last = static_cast<unsigned char>(p[0]) | static_cast<uint64_t>(static_cast<unsigned char>(p[n / 2])) << 8 |
           static_cast<uint64_t>(static_cast<unsigned char>(p[n - 1])) << 16;
  }
  return mix(mix(state, last), n);
}

WordTable::WordTable(const std::string& bytes, const std::vector<Entry>& entries) : entries_(entries) {
  slots_.resize(std::bit_ceil(entries.size() * 2 + 2));
  std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::string_view word = std::string_view(bytes).substr(entries[i].begin, entries[i].size);
    uint64_t h = hash_word(word);
    std::size_t slot = h & mask;
    while (slots_[slot].entry != 0) slot = (slot + 1) & mask;
    slots_[slot] = {.check = static_cast<uint32_t>(h >> 32), .entry = static_cast<uint32_t>(i + 1)};
  }
}

int32_t WordTable::find(std::string_view word, uint64_t h, const std::string& bytes) const {
  std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = h & mask; slots_[slot].entry != 0; slot = (slot + 1) & mask) {
    if (slots_[slot].check != static_cast<uint32_t>(h >> 32)) continue;
    const Entry& e = entries_[slots_[slot].entry - 1];
    if (e.size == word.size() && std::memcmp(bytes.data() + e.begin, word.data(), e.size) == 0) return e.id;
  }
  return -1;
}

}  // namespace deepinfer::text
