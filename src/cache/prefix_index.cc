#include "cache/prefix_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace deepinfer::cache {

std::vector<ImagePiece> image_pieces(std::span<const ImageRun> images, int64_t begin) {
  std::vector<ImagePiece> pieces;
  for (const ImageRun& image : images) {
    int64_t from = std::max(image.begin, begin), to = std::min(image.end, begin + kBlockPositions);
    if (from < to)
      pieces.push_back(
          {image.digest, static_cast<int32_t>(from - begin), static_cast<int32_t>(to - begin), from - image.begin});
  }
  return pieces;
}

PrefixIndex::PrefixIndex(BlockAllocator& blocks, BlockNamer namer, int32_t num_window_places)
    : blocks_(blocks),
      namer_(std::move(namer)),
      places_(num_window_places),
      evicted_(static_cast<std::size_t>(blocks.num_blocks())) {}

// ---- finding
// ---------------------------------------------------------------------------------------------------------

int32_t PrefixIndex::find(const Digest& name) const {
  auto at = by_name_.find(name);
  return at == by_name_.end() ? -1 : at->second;
}

bool PrefixIndex::is_block(const Node& n, int64_t depth, std::span<const int32_t> tokens,
                           std::span<const ImageRun> images) const {
  if (n.depth != depth) return false;
  auto ids = tokens.subspan(static_cast<std::size_t>(depth) * kBlockPositions, kBlockPositions);
  if (std::memcmp(ids.data(), n.ids.data(), sizeof n.ids) != 0) return false;
  return images.empty() ? n.images.empty() : n.images == image_pieces(images, depth * kBlockPositions);
}

PrefixIndex::Longest PrefixIndex::longest(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks,
                                          bool exact_only, std::span<const ImageRun> images) {
  int64_t limit = std::min(max_blocks, static_cast<int64_t>(tokens.size()) / kBlockPositions);
  std::vector<Digest> names;  // names[0] is the root, names[i + 1] that of block i; made only as far as probes reach
  names.push_back(namer_.root(salt));
  auto is_cached = [&](int64_t count) {
    while (static_cast<int64_t>(names.size()) <= count) {
      auto i = static_cast<int64_t>(names.size()) - 1;
      auto ids = tokens.subspan(static_cast<std::size_t>(i) * kBlockPositions, kBlockPositions);
      names.push_back(images.empty() ? namer_.next(names.back(), ids)
                                     : namer_.next(names.back(), ids, image_pieces(images, i * kBlockPositions)));
    }
    return find(names[static_cast<std::size_t>(count)]) >= 0;
  };
  int64_t good = 0, step = 1;
  while (good < limit && is_cached(std::min(good + step, limit))) good = std::min(good + step, limit), step *= 2;
  int64_t bad = std::min(good + step, limit + 1);
  while (bad - good > 1) {
    int64_t middle = good + (bad - good) / 2;
    (is_cached(middle) ? good : bad) = middle;
  }
  MissCause missing = MissCause::kNone;
  // The name behind the last good one was looked for, so it was made.
  if (good < limit)
    missing = evicted_.contains(names[static_cast<std::size_t>(good) + 1]) ? MissCause::kEvicted : MissCause::kNew;
  if (good == 0) return {.missing = missing};
  names.resize(static_cast<std::size_t>(good) + 1);

  int32_t last = find(names.back());
  int32_t at = last;
  int64_t depth = good - 1;
  for (; depth >= 0 && at >= 0 && is_block(node(at), depth, tokens, images); --depth) {
    if (node(at).parent < 0 && node(at).predecessor != names[0]) break;
    at = node(at).parent;
  }
  if (depth >= 0) {  // a name matched and the content did not
    ++stats_.collisions;
    last = walk(names, tokens, images);
    missing = MissCause::kNew;
  }
  for (; exact_only && last >= 0 && node(last).provenance != Provenance::kExact; last = node(last).parent)
    missing = MissCause::kReplayed;
  return {last, missing};
}

int32_t PrefixIndex::walk(std::span<const Digest> names, std::span<const int32_t> tokens,
                          std::span<const ImageRun> images) const {
  int32_t last = -1;
  for (std::size_t i = 1; i < names.size(); ++i) {
    int32_t next = find(names[i]);
    if (next < 0 || node(next).parent != last || !is_block(node(next), static_cast<int64_t>(i) - 1, tokens, images))
      break;
    if (last < 0 && node(next).predecessor != names[0]) break;
    last = next;
  }
  return last;
}

ChainPosition PrefixIndex::position_at(int32_t index) const {
  const Node& n = node(index);
  return {.name = n.name, .serial = n.serial, .node = index, .provenance = n.provenance, .num_blocks = n.depth + 1};
}

PrefixMatch PrefixIndex::match(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks,
                               bool exact_only, std::span<const ImageRun> images) {
  const auto [last, missing] = longest(salt, tokens, max_blocks, exact_only, images);
  int64_t wanted = std::min(max_blocks, static_cast<int64_t>(tokens.size()) / kBlockPositions);
  PrefixMatch match{.end = open(salt)};
  match.missing = missing;
  if (last >= 0) match.end = position_at(last);
  match.blocks.resize(static_cast<std::size_t>(match.end.num_blocks));
  for (int32_t at = last; at >= 0; at = node(at).parent) {  // the last block first: parents count as used later
    match.blocks[static_cast<std::size_t>(node(at).depth)] = node(at).block;
    hold(node(at).block);
    refresh(at, ++clock_);
    if (match.windows == WindowPlaces::kNone && node(at).windows != WindowPlaces::kNone) {
      match.windows = node(at).windows;
      match.windows_end = position_at(at);
    }
  }
  if (match.windows != WindowPlaces::kNone) places_.touch(match.windows);
  stats_.hits += match.end.num_blocks;
  stats_.misses += std::max<int64_t>(0, wanted - match.end.num_blocks);
  return match;
}

int64_t PrefixIndex::probe(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks, bool exact_only,
                           std::span<const ImageRun> images) {
  const int32_t last = longest(salt, tokens, max_blocks, exact_only, images).last;
  return last < 0 ? 0 : node(last).depth + 1;
}

// ---- publishing
// ------------------------------------------------------------------------------------------------------

int32_t PrefixIndex::publish(ChainPosition& end, std::span<const int32_t> ids, int32_t block, Provenance provenance,
                             std::span<const ImageRun> images) {
  DI_CHECK(blocks_.refs(block) > 0, "block {} is published and nobody holds it", block);
  auto pieces = images.empty() ? std::vector<ImagePiece>() : image_pieces(images, end.num_blocks * kBlockPositions);
  Digest name = namer_.next(end.name, ids, pieces);
  if (end.provenance != Provenance::kExact) provenance = Provenance::kReplayed;
  const bool has_parent = is_cached(end);
  ChainPosition next{.name = name, .provenance = provenance, .num_blocks = end.num_blocks + 1};
  int32_t existing = find(name);
  int32_t carrier = block;
  if (!has_parent || (existing < 0 && blocks_.node(block) >= 0)) {
    // The chain before it was evicted (its holder had copies of its own), so the tree could not reach this block; or it
    // carries another name.
  } else if (existing < 0) {
    next = position_at(insert(name, end, ids, block, provenance, std::move(pieces)));
    ++stats_.published;
  } else {
    const Node& n = node(existing);
    bool is_same = n.parent == (end.num_blocks == 0 ? -1 : end.node) && n.depth == end.num_blocks &&
                   n.predecessor == end.name && std::memcmp(n.ids.data(), ids.data(), sizeof n.ids) == 0 &&
                   n.images == pieces;
    if (!is_same) {
      ++stats_.collisions;  // the name is taken by another block: this one stays private
    } else {
      stats_.duplicates += n.block != block;
      const bool is_better = n.provenance == Provenance::kReplayed && provenance == Provenance::kExact;
      if (is_better && blocks_.node(block) < 0) replace_block(existing, block);
      refresh(existing, ++clock_);
      next = position_at(existing);
      // The sequence's windows are replayed ones, whatever the tree's block is made of.
      if (provenance == Provenance::kReplayed) next.provenance = Provenance::kReplayed;
      carrier = node(existing).block;
    }
  }
  end = next;
  return carrier;
}

int32_t PrefixIndex::insert(const Digest& name, const ChainPosition& parent, std::span<const int32_t> ids,
                            int32_t block, Provenance provenance, std::vector<ImagePiece> images) {
  int32_t index;
  if (unused_.empty()) {
    index = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  Node& n = node(index);
  n = {.name = name, .predecessor = parent.name, .parent = parent.num_blocks == 0 ? -1 : parent.node, .block = block};
  n.serial = next_serial_++;
  n.depth = parent.num_blocks;
  n.provenance = provenance;
  n.images = std::move(images);
  std::copy(ids.begin(), ids.end(), n.ids.begin());
  by_name_.emplace(name, index);
  blocks_.set_node(block, index);
  ++num_unheld_;  // until the next line makes it busy
  if (n.parent >= 0) {
    ++node(n.parent).num_children;
    refresh(n.parent, node(n.parent).last_use);
  }
  add_busy(index, 1);
  refresh(index, ++clock_);
  return index;
}

// An exact copy takes the place of a replayed one.
void PrefixIndex::replace_block(int32_t index, int32_t block) {
  Node& n = node(index);
  bool was_held = blocks_.refs(n.block) > 0;
  blocks_.clear_node(n.block);
  n.block = block;
  n.provenance = Provenance::kExact;
  blocks_.set_node(block, index);
  if (!was_held) add_busy(index, 1);
}

// ---- holding and evicting
// --------------------------------------------------------------------------------------------

void PrefixIndex::add_busy(int32_t index, int delta) {
  for (int32_t at = index; at >= 0; at = node(at).parent) {
    Node& n = node(at);
    bool was_busy = n.num_busy > 0;
    n.num_busy += delta;
    DI_CHECK(n.num_busy >= 0, "node {} is busy {} times", at, n.num_busy);
    refresh(at, n.last_use);
    if (was_busy == (n.num_busy > 0)) return;
    num_unheld_ -= delta;
  }
}

void PrefixIndex::refresh(int32_t index, uint64_t use) {
  Node& n = node(index);
  if (use == n.last_use && n.serial != 0) {
    if (is_evictable(n))
      leaves_.emplace(use, index);
    else
      leaves_.erase({use, index});
    return;
  }
  leaves_.erase({n.last_use, index});
  n.last_use = use;
  if (is_evictable(n)) leaves_.emplace(use, index);
}

void PrefixIndex::hold(int32_t block) {
  bool was_held = blocks_.refs(block) > 0;
  blocks_.share(block);
  if (!was_held) add_busy(blocks_.node(block), 1);
}

void PrefixIndex::release(int32_t block) {
  if (!blocks_.release(block)) return;
  int32_t index = blocks_.node(block);
  refresh(index, ++clock_);
  add_busy(index, -1);
}

void PrefixIndex::remove(int32_t index) {
  Node& n = node(index);
  DI_CHECK(is_evictable(n), "node {} has {} children and is busy {} times", index, n.num_children, n.num_busy);
  if (n.windows != WindowPlaces::kNone) {
    places_.drop(n.windows);
    ++stats_.windows_evicted;
  }
  leaves_.erase({n.last_use, index});
  by_name_.erase(n.name);
  evicted_.add(n.name);
  blocks_.clear_node(n.block);
  --num_unheld_;
  if (int32_t parent = n.parent; parent >= 0) {
    --node(parent).num_children;
    refresh(parent, node(parent).last_use);
  }
  n.serial = 0;
  n.images.clear();
  unused_.push_back(index);
  ++stats_.evicted;
}

std::optional<int32_t> PrefixIndex::take() {
  if (blocks_.num_free() == 0) {
    if (leaves_.empty()) return std::nullopt;
    remove(leaves_.begin()->second);
  }
  return blocks_.take_free();
}

// ---- windows
// ---------------------------------------------------------------------------------------------------------

std::optional<int32_t> PrefixIndex::take_windows() {
  std::optional<WindowPlaces::Taken> taken = places_.take();
  if (!taken) return std::nullopt;
  if (taken->evicted_node != WindowPlaces::kNone) {
    node(taken->evicted_node).windows = WindowPlaces::kNone;
    ++stats_.windows_evicted;
  }
  return taken->place;
}

void PrefixIndex::store_windows(const ChainPosition& end, int32_t place) {
  const bool is_wanted = end.num_blocks > 0 && is_cached(end) && node(end.node).windows == WindowPlaces::kNone &&
                         node(end.node).provenance == Provenance::kExact;
  if (!is_wanted) return places_.give_back(place);
  node(end.node).windows = place;
  places_.store(place, end.node);
  ++stats_.windows_stored;
}

void PrefixIndex::retire_windows(const ChainPosition& end) {
  if (end.num_blocks > 0 && is_cached(end) && node(end.node).windows != WindowPlaces::kNone)
    places_.retire(node(end.node).windows);
}

// ---- leases
// ----------------------------------------------------------------------------------------------------------

std::optional<LeaseId> PrefixIndex::pin(const Digest& name, std::string owner, std::string purpose,
                                        int64_t deadline_us) {
  int32_t index = find(name);
  if (index < 0) return std::nullopt;
  if (node(index).num_pins++ == 0) add_busy(index, 1);
  LeaseId id{next_lease_++};
  pins_.emplace(static_cast<int64_t>(id), Pin{{id, std::move(owner), std::move(purpose), deadline_us}, index});
  return id;
}

void PrefixIndex::unpin(LeaseId lease) {
  auto at = pins_.find(static_cast<int64_t>(lease));
  if (at == pins_.end()) return;  // it expired
  int32_t index = at->second.node;
  pins_.erase(at);
  DI_CHECK(node(index).num_pins > 0, "node {} is not pinned", index);
  if (--node(index).num_pins == 0) add_busy(index, -1);
}

std::vector<Lease> PrefixIndex::expire(int64_t now_us) {
  std::vector<Lease> leaked;
  for (const auto& [id, pin] : pins_)
    if (pin.lease.deadline_us <= now_us) leaked.push_back(pin.lease);
  for (const Lease& lease : leaked) unpin(lease.id);
  return leaked;
}

std::vector<Lease> PrefixIndex::leases() const {
  std::vector<Lease> all;
  for (const auto& [id, pin] : pins_) all.push_back(pin.lease);
  return all;
}

void PrefixIndex::check() const {
  std::vector<int32_t> children(nodes_.size(), 0), busy(nodes_.size(), 0);
  for (const auto& [name, index] : by_name_) {
    const Node& n = node(index);
    DI_CHECK(n.serial != 0 && n.name == name && blocks_.node(n.block) == index, "node {}", index);
    if (n.parent < 0) {
      DI_CHECK(n.depth == 0, "node {} has no parent at depth {}", index, n.depth);
      continue;
    }
    const Node& parent = node(n.parent);
    DI_CHECK(parent.serial != 0 && parent.depth + 1 == n.depth && parent.name == n.predecessor, "parent of node {}",
             index);
    DI_CHECK(n.provenance == Provenance::kReplayed || parent.provenance == Provenance::kExact,
             "node {} is exact on a replayed one", index);
    ++children[static_cast<std::size_t>(n.parent)];
    if (n.num_busy > 0) ++busy[static_cast<std::size_t>(n.parent)];
  }
  int64_t unheld = 0;
  std::size_t evictable = 0;
  int32_t stored = 0;
  for (const auto& [name, index] : by_name_) {
    const Node& n = node(index);
    int own = (blocks_.refs(n.block) > 0) + (n.num_pins > 0);
    DI_CHECK(n.num_children == children[static_cast<std::size_t>(index)], "children of node {}", index);
    DI_CHECK(n.num_busy == own + busy[static_cast<std::size_t>(index)], "node {} is busy {} times", index, n.num_busy);
    unheld += n.num_busy == 0;
    if (n.windows != WindowPlaces::kNone) {
      ++stored;
      DI_CHECK(places_.node(n.windows) == index && n.provenance == Provenance::kExact, "windows of node {}", index);
    }
    evictable += is_evictable(n);
    DI_CHECK(is_evictable(n) == leaves_.contains({n.last_use, index}), "node {} among the leaves", index);
  }
  DI_CHECK(unheld == num_unheld_ && evictable == leaves_.size(), "{} unheld of {}, {} leaves of {}", unheld,
           num_unheld_, evictable, leaves_.size());
  DI_CHECK(stored == places_.num_stored(), "{} nodes with windows, {} stored", stored, places_.num_stored());
  int64_t named = 0, held = 0;
  for (int32_t b = 1; b <= blocks_.num_blocks(); ++b) {
    named += blocks_.node(b) >= 0;
    held += blocks_.refs(b) > 0 && blocks_.node(b) < 0;
  }
  DI_CHECK(named == num_nodes() && named + held + blocks_.num_free() == blocks_.num_blocks(),
           "{} named, {} held, {} free of {}", named, held, blocks_.num_free(), blocks_.num_blocks());
}

}  // namespace deepinfer::cache
