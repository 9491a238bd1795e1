// Finds the added tokens of a text: leftmost match, longest at one position.
//
// A trie walked from every position whose byte can begin a token. Names are at most kMaxAddedTokenBytes long, so the
// walk is linear in the text whatever it holds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

inline constexpr std::size_t kMaxAddedTokenBytes = 256;

class AddedTokenMatcher {
 public:
  struct Entry {
    std::string text;  // 1 .. kMaxAddedTokenBytes bytes, each text once
    int32_t id = 0;
  };
  struct Match {
    std::size_t begin = 0, end = 0;
    int32_t id = -1;  // -1: none, and both positions are the end of the text
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<Entry> entries);

  // First match at or behind `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  struct Edge {
    unsigned char byte;
    int32_t node;
  };
  struct Node {
    int32_t id = -1;
    uint32_t first_edge = 0, num_edges = 0;
  };
  int32_t build(const std::vector<Entry>& entries, std::size_t first, std::size_t last, std::size_t depth);
  int32_t child(int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace deepinfer::text
