// Token id -> compressed id, the alphabet over which Engram hashes its n-grams.
//
// Tokens that read the same after folding (compatibility forms, accents, case, white space) share a compressed id; ids
// are numbered by first appearance in token order. A token that is a fragment of characters keeps an id of its own.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::text {

class Tokenizer;

struct CompressedVocabulary {
  std::vector<int32_t> ids;  // by token id
  int32_t size = 0;          // number of compressed ids; must equal the model's engram_compressed_vocab_size
};

CompressedVocabulary compress_vocabulary(const Tokenizer& tokenizer);

}  // namespace deepinfer::text
