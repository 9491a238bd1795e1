// Pieces that are one token: bytes -> id, so that most words need one look-up instead of a merge run.
//
// Holds only tokens that the merge procedure itself makes of their bytes; the caller checks that. Immutable after
// building.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

uint64_t hash_word(std::string_view word);

class WordTable {
 public:
  struct Entry {
    uint32_t begin = 0, size = 0;  // in the bytes given to find()
    int32_t id = 0;
  };

  WordTable() = default;
  // `bytes` holds the text of every token one after the other.
  WordTable(const std::string& bytes, const std::vector<Entry>& entries);

  // Id of the token with these bytes, -1 if there is none. `bytes` are those given to the constructor, `hash` is
  // hash_word(word).
  int32_t find(std::string_view word, uint64_t hash, const std::string& bytes) const;

 private:
  struct Slot {
    uint32_t check = 0;  // upper half of the hash
    uint32_t entry = 0;  // index + 1, 0: free
  };
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
};

}  // namespace deepinfer::text
