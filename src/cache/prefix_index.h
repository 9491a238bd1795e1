// Which chains of blocks are cached: the tree over named blocks.
//
//   root(salt A) ── 0 ── 1 ── 2 ── 3        a node per block; a child continues its parent's tokens
//                         └── 2' ── 3'      two chains part where a node has two children
//
//   - A node is in the tree only if its parent is: prefixes are closed. So the longest hit is found by galloping over
//   the
//     names of a prompt (13 probes for 8,192 blocks), and eviction takes leaves only, the least recently used first.
//   - A name match is a candidate: the 128 ids of every block, its images and its parent are compared before use. A
//   mismatch
//     is a miss and is counted.
//   - A block with holders, with pins, or with children is never evicted.
//   - Provenance: a node is exact if the rows were made from exact windows and its parent is exact; else replayed.
//   - A node may have windows: a stored copy of the window state behind its block, at an exact node only
//   (window_places.h). They go when their place is wanted or their node is evicted, never later than the block.
//   - When two sequences compute the same block, the first to publish wins; the second learns of that block and frees
//   its
//     own copy, which stays unnamed. An exact copy replaces a replayed one.
//
// Blocks are evicted and named one at a time, so nodes are blocks and not runs of blocks: a run would be split and
// joined at every eviction. Not thread-safe; the scheduler thread owns it. Time comes in as an argument.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/block_name.h"
#include "cache/evicted_names.h"
#include "cache/window_places.h"
#include "deepinfer/request.h"

namespace deepinfer::cache {

// Where a sequence stands in its chain. A plain value; `node` and `serial` say which tree node the last block is, so
// that a node that was evicted, or one whose name merely collides, is never continued.
struct ChainPosition {
  Digest name{};  // of the last block, or the chain's root
  uint64_t serial = 0;
  int32_t node = -1;
  Provenance provenance = Provenance::kExact;
  int64_t num_blocks = 0;
};

struct PrefixMatch {
  std::vector<int32_t> blocks;  // held once more for the caller
  ChainPosition end;
  // The last boundary of the chain with stored windows.
  int32_t windows = WindowPlaces::kNone;
  ChainPosition windows_end;
  MissCause missing = MissCause::kNone;  // why it ends before the last block that was asked for
};

struct ImageRun {
  Sha256 digest{};
  int64_t begin = 0, end = 0;  // token positions in the sequence
};

enum class LeaseId : int64_t {};
struct Lease {
  LeaseId id{};
  std::string owner, purpose;
  int64_t deadline_us = 0;
};

struct IndexStats {
  int64_t hits = 0, misses = 0;  // blocks asked for
  int64_t collisions = 0;        // names that matched while the content did not
  int64_t published = 0, duplicates = 0, evicted = 0;
  int64_t windows_stored = 0, windows_evicted = 0;
};

class PrefixIndex {
 public:
  PrefixIndex(BlockAllocator& blocks, BlockNamer namer, int32_t num_window_places = 0);

  ChainPosition open(std::string_view salt) const { return {.name = namer_.root(salt)}; }

  // The longest cached chain for the first whole blocks of `tokens`, at most `max_blocks` and without a replayed block
  // if `exact_only`. Its blocks are held once more for the caller and count as used now, and so do the last windows.
  PrefixMatch match(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks, bool exact_only,
                    std::span<const ImageRun> images = {});
  // How many blocks match() would find; holds nothing and touches nothing.
  int64_t probe(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks, bool exact_only,
                std::span<const ImageRun> images = {});

  // Whether the chain's last block (or its root) is still in the tree, so that it can be continued.
  bool is_cached(const ChainPosition& end) const {
    return end.num_blocks == 0 || (end.node >= 0 && node(end.node).serial == end.serial);
  }
  // Names the block that follows `end`: its 128 tokens are committed and its rows complete. Moves `end` on. The caller
  // keeps holding `block`. Returns the block that now carries the name: `block`, or the one that was there first.
  int32_t publish(ChainPosition& end, std::span<const int32_t> ids, int32_t block, Provenance provenance,
                  std::span<const ImageRun> images = {});

  // A block with one holder: a free one, else the least recently used evictable leaf. nullopt if everything is in use.
  std::optional<int32_t> take();
  void share(int32_t block) { hold(block); }
  void release(int32_t block);
  // Free blocks and those that take() could free one after the other.
  int64_t num_available() const { return blocks_.num_free() + num_unheld_; }

  // A place for windows that the caller lets copy: a free one, else that of the windows that go next. nullopt if there
  // is none or all are being filled. It ends with store_windows or give_back_windows.
  std::optional<int32_t> take_windows();
  void give_back_windows(int32_t place) { places_.give_back(place); }
  // The place holds the window state behind `end`. It becomes free again if the node is gone, replayed, or has windows.
  void store_windows(const ChainPosition& end, int32_t place);
  // These windows go next, if they are still there.
  void retire_windows(const ChainPosition& end);
  const WindowPlaces& window_places() const { return places_; }

  // Keeps a chain up to and including `name` until unpin() or the deadline; false-y (nullopt) if it is not cached.
  std::optional<LeaseId> pin(const Digest& name, std::string owner, std::string purpose, int64_t deadline_us);
  void unpin(LeaseId lease);
  // Leases past their deadline: released, and returned so that the leak is reported.
  std::vector<Lease> expire(int64_t now_us);
  std::vector<Lease> leases() const;

  int64_t num_nodes() const { return static_cast<int64_t>(by_name_.size()); }
  const IndexStats& stats() const { return stats_; }
  // Walks everything and DI_CHECKs every invariant above. For tests and debug builds.
  void check() const;

 private:
  struct Node {
    Digest name{}, predecessor{};
    int32_t parent = -1;  // -1: the chain's first block
    int32_t block = 0, num_children = 0, num_pins = 0;
    int32_t num_busy = 0;  // held + pinned + children that are busy: not 0 means that it cannot be freed
    uint64_t serial = 0;   // 0: the place is unused
    Provenance provenance = Provenance::kExact;
    int64_t depth = 0;  // blocks before it
    int32_t windows = WindowPlaces::kNone;
    uint64_t last_use = 0;
    std::array<int32_t, kBlockPositions> ids{};
    std::vector<ImagePiece> images;
  };
  Node& node(int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }
  const Node& node(int32_t index) const { return nodes_[static_cast<std::size_t>(index)]; }
  int32_t find(const Digest& name) const;
  // Whether the node is block `depth` of this prompt, its own content only.
  bool is_block(const Node& n, int64_t depth, std::span<const int32_t> tokens, std::span<const ImageRun> images) const;
  struct Longest {
    int32_t last = -1;  // node; -1: there is none
    MissCause missing = MissCause::kNone;
  };
  Longest longest(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks, bool exact_only,
                  std::span<const ImageRun> images);
  int32_t walk(std::span<const Digest> names, std::span<const int32_t> tokens, std::span<const ImageRun> images) const;
  ChainPosition position_at(int32_t index) const;
  bool is_evictable(const Node& n) const { return n.num_children == 0 && n.num_busy == 0; }
  void add_busy(int32_t index, int delta);
  void refresh(int32_t index, uint64_t use);  // sets last_use and membership in leaves_
  void hold(int32_t block);
  void remove(int32_t index);
  int32_t insert(const Digest& name, const ChainPosition& parent, std::span<const int32_t> ids, int32_t block,
                 Provenance provenance, std::vector<ImagePiece> images);
  void replace_block(int32_t index, int32_t block);

  BlockAllocator& blocks_;
  BlockNamer namer_;
  WindowPlaces places_;
  std::vector<Node> nodes_;
  std::vector<int32_t> unused_;  // places in nodes_
  std::unordered_map<Digest, int32_t, NameHash> by_name_;
  EvictedNames evicted_;
  std::set<std::pair<uint64_t, int32_t>> leaves_;  // evictable, by last use
  struct Pin {
    Lease lease;
    int32_t node;
  };
  std::map<int64_t, Pin> pins_;
  int64_t next_lease_ = 1;
  uint64_t next_serial_ = 1;
  int64_t num_unheld_ = 0;  // named blocks that can be freed by evicting leaves one after the other
  uint64_t clock_ = 0;      // counts uses
  IndexStats stats_;
};

// The pieces of images that lie in the block starting at token `begin`.
std::vector<ImagePiece> image_pieces(std::span<const ImageRun> images, int64_t begin);

}  // namespace deepinfer::cache
