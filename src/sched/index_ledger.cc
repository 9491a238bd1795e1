#include "sched/index_ledger.h"

#include <cstring>
#include <utility>

namespace deepinfer::sched {

static_assert(kNoWindows == cache::WindowPlaces::kNone);

namespace {

// What ChainCursor::name holds.
struct CursorName {
  cache::Digest name;
  uint64_t serial;
  int32_t node, unused;
};
static_assert(sizeof(CursorName) == sizeof(ChainCursor::name));

ChainCursor to_cursor(const cache::ChainPosition& p) {
  CursorName name{p.name, p.serial, p.node, 0};
  ChainCursor cursor{.num_blocks = p.num_blocks, .exact = p.provenance == cache::Provenance::kExact, .open = true};
  std::memcpy(cursor.name.data(), &name, sizeof name);
  return cursor;
}

cache::ChainPosition to_position(const ChainCursor& cursor) {
  CursorName name;
  std::memcpy(&name, cursor.name.data(), sizeof name);
  return {.name = name.name,
          .serial = name.serial,
          .node = name.node,
          .provenance = cursor.exact ? cache::Provenance::kExact : cache::Provenance::kReplayed,
          .num_blocks = cursor.num_blocks};
}

}  // namespace

IndexLedger::IndexLedger(int32_t num_blocks, std::string_view cluster_key, const cache::Digest& name_space,
                         int32_t num_window_places)
    : blocks_(num_blocks), index_(blocks_, cache::BlockNamer(cluster_key, name_space), num_window_places) {}

PrefixHit IndexLedger::match(std::span<const int32_t> tokens, const std::string& share_key, int64_t max_blocks,
                             bool exact_only) {
  cache::PrefixMatch match = index_.match(share_key, tokens, max_blocks, exact_only);
  return {.blocks = std::move(match.blocks),
          .cursor = to_cursor(match.end),
          .windows = match.windows,
          .windows_cursor = to_cursor(match.windows_end),
          .missing = match.missing};
}

ChainCursor IndexLedger::open_chain(const std::string& share_key) {
  return to_cursor(index_.open(share_key));
}

bool IndexLedger::is_cached(const ChainCursor& cursor) const {
  return index_.is_cached(to_position(cursor));
}

int32_t IndexLedger::publish(ChainCursor& cursor, std::span<const int32_t> block_tokens, int32_t block) {
  if (!cursor.open) return block;
  cache::ChainPosition position = to_position(cursor);
  int32_t carrier = index_.publish(position, block_tokens, block, position.provenance);
  cursor = to_cursor(position);
  cursor.open = index_.is_cached(position);
  return carrier;
}

void IndexLedger::store_windows(const ChainCursor& cursor, int32_t place) {
  index_.store_windows(to_position(cursor), place);
}

void IndexLedger::retire_windows(const ChainCursor& cursor) {
  index_.retire_windows(to_position(cursor));
}

}  // namespace deepinfer::sched
