// Which rows of the Engram tables a token reads: an n-gram hash in integers (model.md 4.2).
//
//   acc_k = (q_0 M[0]) xor ... xor (q_k M[k]);   row(k, a) = offset(k, a) + acc_k mod P[k-1][a],   k = 1 .. n - 1
//   columns k-major, head-minor; q_k is the compressed id k tokens back, or pad from the first missing or dead one on.
//
// Immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weights/config.h"

namespace deepinfer {

// History entry of a position that takes part in no n-gram (inside an image span).
inline constexpr int32_t kEngramDead = -1;

// The next `count` primes from `start` up, ascending.
std::vector<int64_t> primes_from(int64_t start, int count);

// What numpy's default_rng(seed).integers(0, high, count, int64) returns, for high > 2^32.
std::vector<int64_t> pcg64_integers(uint64_t seed, uint64_t high, int count);

// Table rows a layer by the prime layout; what engram_num_embeddings must say.
std::vector<int64_t> engram_table_rows(int num_layers, int max_ngram, int num_heads, int64_t vocab_size);

class EngramHash {
 public:
  // `pad` is the compressed id of engram_pad_token_id.
  EngramHash(const ModelConfig& config, int32_t pad);

  int columns() const { return (max_ngram_ - 1) * num_heads_; }
  std::span<const int64_t> primes(int engram_index) const;       // [columns]
  std::span<const int64_t> multipliers(int engram_index) const;  // [max_ngram]

  // Rows of the last `count` positions of `history` (compressed ids, oldest first; what precedes it counts as missing,
  // so give max_ngram - 1 ids of context unless the history starts at position 0). out: [count, columns].
  void rows(int engram_index, std::span<const int32_t> history, int64_t count, std::span<int64_t> out) const;

 private:
  int max_ngram_, num_heads_;
  int32_t pad_;
  std::vector<int64_t> primes_, offsets_;  // [layers, columns]
  std::vector<int64_t> multipliers_;       // [layers, max_ngram]
};

}  // namespace deepinfer
