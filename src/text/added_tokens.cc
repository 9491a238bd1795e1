#include "text/added_tokens.h"

#include <algorithm>

namespace deepinfer::text {

AddedTokenMatcher::AddedTokenMatcher(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& e : entries) is_first_byte_[static_cast<unsigned char>(e.text[0])] = true;
  build(entries, 0, entries.size(), 0);
}

// Node for entries[first, last), which share their first `depth` bytes.
int32_t AddedTokenMatcher::build(const std::vector<Entry>& entries, std::size_t first, std::size_t last,
                                 std::size_t depth) {
  auto index = static_cast<int32_t>(nodes_.size());
  nodes_.emplace_back();
  if (first < last && entries[first].text.size() == depth) {
    nodes_.back().id = entries[first].id;
    ++first;
  }
  std::vector<Edge> edges;
  while (first < last) {
    char byte = entries[first].text[depth];
    std::size_t group = first;
    while (group < last && entries[group].text[depth] == byte) ++group;
    edges.push_back({static_cast<unsigned char>(byte), build(entries, first, group, depth + 1)});
    first = group;
  }
  Node& node = nodes_[static_cast<std::size_t>(index)];
  node.first_edge = static_cast<uint32_t>(edges_.size());
  node.num_edges = static_cast<uint32_t>(edges.size());
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  return index;
}

int32_t AddedTokenMatcher::child(int32_t node, unsigned char byte) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  const Edge* begin = edges_.data() + n.first_edge;
  const Edge* end = begin + n.num_edges;
  const Edge* at = std::lower_bound(begin, end, byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
  return at != end && at->byte == byte ? at->node : -1;
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, std::size_t from) const {
  for (std::size_t i = from; i < text.size(); ++i) {
    if (!is_first_byte_[static_cast<unsigned char>(text[i])]) continue;
    Match match;
    int32_t node = 0;
    for (std::size_t j = i; j < text.size(); ++j) {
      node = child(node, static_cast<unsigned char>(text[j]));
      if (node < 0) break;
      int32_t id = nodes_[static_cast<std::size_t>(node)].id;
      if (id >= 0) match = {.begin = i, .end = j + 1, .id = id};
    }
    if (match.id >= 0) return match;
  }
  return {.begin = text.size(), .end = text.size(), .id = -1};
}

}  // namespace deepinfer::text
