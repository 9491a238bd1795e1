#include "weights/engram_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

// numpy's SeedSequence for one seed below 2^64: its words hashed into a pool of four, the pool expanded to eight words.
std::array<uint64_t, 4> seed_words(uint64_t seed) {
  uint32_t h = 0x43B0D7E5;
  auto hash_mix = [&h](uint32_t v) {
    v ^= h;
    h *= 0x931E8875;
    v *= h;
    return v ^ v >> 16;
  };
  const uint32_t words[4] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  uint32_t pool[4];
  for (int i = 0; i < 4; ++i) pool[i] = hash_mix(words[i]);
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from == to) continue;
      uint32_t r = 0xCA01F9DD * pool[to] - 0x4973F715 * hash_mix(pool[from]);
      pool[to] = r ^ r >> 16;
    }
  }
  h = 0x8B51F9DD;
  uint32_t out[8];
  for (int i = 0; i < 8; ++i) {
    uint32_t v = pool[i % 4] ^ h;
    h *= 0x58F38DED;
    v *= h;
    out[i] = v ^ v >> 16;
  }
  std::array<uint64_t, 4> words64;
  for (int i = 0; i < 4; ++i) words64[i] = out[2 * i] | static_cast<uint64_t>(out[2 * i + 1]) << 32;
  return words64;
}

__extension__ using uint128 = unsigned __int128;

// PCG XSL-RR 128/64.
class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    auto q = seed_words(seed);
    increment_ = (static_cast<uint128>(q[2]) << 64 | q[3]) << 1 | 1;
    state_ = (increment_ + (static_cast<uint128>(q[0]) << 64 | q[1])) * kMultiplier + increment_;
  }
  uint64_t next() {
    state_ = state_ * kMultiplier + increment_;
    return std::rotr(static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_),
                     static_cast<int>(state_ >> 122));
  }

 private:
  static constexpr uint128 kMultiplier = static_cast<uint128>(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;
  uint128 increment_, state_;
};

}  // namespace

std::vector<int64_t> primes_from(int64_t start, int count) {
  std::vector<int64_t> found;
  found.reserve(static_cast<size_t>(count));
  std::vector<int64_t> small;  // primes up to the root of the current segment's end
  int64_t sieved_to = 1;
  for (int64_t begin = std::max<int64_t>(start, 2); static_cast<int>(found.size()) < count;) {
    // Gaps are about ln(begin) wide; a segment of twice the expected span usually holds all that is missing.
    int64_t wanted = count - static_cast<int64_t>(found.size());
    int64_t length =
        64 + static_cast<int64_t>(2 * static_cast<double>(wanted) * std::log(static_cast<double>(begin) + 2));
    length = std::min<int64_t>(length, 1 << 20);
    int64_t root = static_cast<int64_t>(std::sqrt(static_cast<double>(begin + length))) + 1;
    if (root > sieved_to) {
      std::vector<char> composite(static_cast<size_t>(root) + 1, 0);
      small.clear();
      for (int64_t p = 2; p <= root; ++p) {
        if (composite[static_cast<size_t>(p)]) continue;
        small.push_back(p);
        for (int64_t m = p * p; m <= root; m += p) composite[static_cast<size_t>(m)] = 1;
      }
      sieved_to = root;
    }
    std::vector<char> composite(static_cast<size_t>(length), 0);
    for (int64_t p : small) {
      if (p * p >= begin + length) break;
      for (int64_t m = std::max(p * p, (begin + p - 1) / p * p); m < begin + length; m += p) {
        composite[static_cast<size_t>(m - begin)] = 1;
      }
    }
    for (int64_t i = 0; i < length && static_cast<int>(found.size()) < count; ++i) {
      if (!composite[static_cast<size_t>(i)]) found.push_back(begin + i);
    }
    begin += length;
  }
  return found;
}

std::vector<int64_t> pcg64_integers(uint64_t seed, uint64_t high, int count) {
  DI_CHECK(high > (uint64_t{1} << 32), "bound {} needs the 32-bit generator", high);
  Pcg64 generator(seed);
  const uint64_t threshold = (0 - high) % high;  // Lemire's multiply-and-reject
  std::vector<int64_t> values;
  while (static_cast<int>(values.size()) < count) {
    uint128 m = static_cast<uint128>(generator.next()) * high;
    if (static_cast<uint64_t>(m) >= threshold) values.push_back(static_cast<int64_t>(m >> 64));
  }
  return values;
}

// Each (layer, size) takes the next primes not used before from vocab_size up: together, simply the next primes.
std::vector<int64_t> engram_table_rows(int num_layers, int max_ngram, int num_heads, int64_t vocab_size) {
  int columns = (max_ngram - 1) * num_heads;
  auto primes = primes_from(vocab_size, num_layers * columns);
  std::vector<int64_t> rows(static_cast<size_t>(num_layers), 0);
  for (size_t i = 0; i < primes.size(); ++i) rows[i / static_cast<size_t>(columns)] += primes[i];
  return rows;
}

EngramHash::EngramHash(const ModelConfig& config, int32_t pad)
    : max_ngram_(config.engram_max_ngram_size), num_heads_(config.engram_n_heads), pad_(pad) {
  const int num_layers = static_cast<int>(config.engram_layer_ids.size());
  primes_ = primes_from(config.engram_vocab_size, num_layers * columns());
  // Odd and so small that id * multiplier stays below 2^63.
  const uint64_t bound = ((uint64_t{1} << 63) - 1) / static_cast<uint64_t>(config.engram_compressed_vocab_size) / 2;
  for (int i = 0; i < num_layers; ++i) {
    int64_t offset = 0;
    for (int c = 0; c < columns(); ++c) {
      offsets_.push_back(offset);
      offset += primes_[static_cast<size_t>(i * columns() + c)];
    }
    uint64_t seed = 10007 * static_cast<uint64_t>(config.engram_layer_ids[static_cast<size_t>(i)]);
    for (int64_t v : pcg64_integers(seed, bound, max_ngram_)) multipliers_.push_back(2 * v + 1);
  }
}

std::span<const int64_t> EngramHash::primes(int engram_index) const {
  return std::span(primes_).subspan(static_cast<size_t>(engram_index * columns()), static_cast<size_t>(columns()));
}

std::span<const int64_t> EngramHash::multipliers(int engram_index) const {
  return std::span(multipliers_)
      .subspan(static_cast<size_t>(engram_index * max_ngram_), static_cast<size_t>(max_ngram_));
}

void EngramHash::rows(int engram_index, std::span<const int32_t> history, int64_t count, std::span<int64_t> out) const {
  const int64_t length = static_cast<int64_t>(history.size());
  DI_CHECK(count <= length && static_cast<int64_t>(out.size()) == count * columns(), "{} rows of {} ids into {} values",
           count, length, out.size());
  const int64_t* prime = primes(engram_index).data();
  const int64_t* offset = offsets_.data() + engram_index * columns();
  const int64_t* multiplier = multipliers(engram_index).data();
  int64_t* row = out.data();
  for (int64_t t = length - count; t < length; ++t) {
    bool is_missing = false;
    int64_t acc = 0;
    for (int k = 0; k < max_ngram_; ++k) {
      is_missing = is_missing || t - k < 0 || history[static_cast<size_t>(t - k)] == kEngramDead;
      acc ^= (is_missing ? pad_ : history[static_cast<size_t>(t - k)]) * multiplier[k];
      if (k == 0) continue;
      for (int a = 0; a < num_heads_; ++a) {
        int column = (k - 1) * num_heads_ + a;
        *row++ = offset[column] + acc % prime[column];
      }
    }
  }
}

}  // namespace deepinfer
