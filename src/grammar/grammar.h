// A compiled grammar, and the vocabulary it was compiled for. The library's types stay in this folder's .cc files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace deepinfer::grammar {

// What the tokens are to a grammar. An id without bytes is never allowed.
struct Vocabulary {
  std::vector<std::string> bytes;  // [vocab], of ordinary tokens
  // Control tokens that an answer may spell (think, tool calls, grounding): allowed by structural tags only.
  std::vector<std::pair<int32_t, std::string>> controls;
  int32_t eos_id = -1;
};

// Immutable; shared by all sequences that follow it, and by the compiler's cache.
class Grammar {
 public:
  struct Compiled;
  Grammar(std::unique_ptr<Compiled> compiled, int vocab, int64_t bytes);
  ~Grammar();
  const Compiled& compiled() const { return *compiled_; }
  int vocab() const { return vocab_; }
  int num_mask_words() const { return (vocab_ + 31) / 32; }
  int64_t bytes() const { return bytes_; }  // of memory, about

 private:
  std::unique_ptr<Compiled> compiled_;
  int vocab_;
  int64_t bytes_;
};

}  // namespace deepinfer::grammar
