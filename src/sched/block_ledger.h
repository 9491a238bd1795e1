// What the scheduler asks of the block pool and the prefix index: who holds which block, and which blocks already hold
// the keys of a prompt, and where window states are stored. Ids only; the bytes live in cache/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer::sched {

inline constexpr int64_t kBlockTokens = 128;

// Where a sequence stands in the chain of named blocks.
struct ChainCursor {
  std::array<uint8_t, 32> name{};  // of the last block
  int64_t num_blocks = 0;
  bool exact = true;  // provenance: false once any block came from a bounded replay
  bool open = false;  // false: nothing is published (reuse is off)
};

inline constexpr int32_t kNoWindows = -1;

struct PrefixHit {
  std::vector<int32_t> blocks;           // held for the caller
  ChainCursor cursor;                    // after the last of them
  int32_t windows = kNoWindows;          // the last stored window state of the chain: its place,
  ChainCursor windows_cursor;            // and the boundary that it belongs to
  MissCause missing = MissCause::kNone;  // why it ends before the last block that was asked for
};

class BlockLedger {
 public:
  virtual ~BlockLedger() = default;
  virtual int64_t num_blocks() const = 0;     // that can be held at all
  virtual int64_t num_available() const = 0;  // free, or cached and held by nobody
  // A block for one holder, from the free ones or by evicting a cached one; nullopt if all are held.
  virtual std::optional<int32_t> take() = 0;
  virtual void share(int32_t block) = 0;      // one more holder
  virtual void give_back(int32_t block) = 0;  // one holder less; a named block stays cached
  // The longest chain of cached blocks for these tokens, at most `max_blocks`, exact ones only if asked. Held for the
  // caller.
  virtual PrefixHit match(std::span<const int32_t> tokens, const std::string& share_key, int64_t max_blocks,
                          bool exact_only) = 0;
  virtual ChainCursor open_chain(const std::string& share_key) = 0;
  // False once the chain's last block was evicted: what follows it could not be found, so nothing may be published.
  virtual bool is_cached(const ChainCursor& cursor) const = 0;
  // Names the block that follows `cursor` (its 128 tokens are committed and complete) and moves the cursor; closes it
  // if the name is taken by other content. Returns the block that carries the name: `block`, or an equal one that was
  // there first.
  virtual int32_t publish(ChainCursor& cursor, std::span<const int32_t> block_tokens, int32_t block) = 0;

  // A place for a window state that a step will copy, from the free ones or from the stored ones that go next; nullopt
  // if there is none. It ends with one of the next two calls.
  virtual std::optional<int32_t> take_windows() = 0;
  virtual void give_back_windows(int32_t place) = 0;
  // The place holds the state behind `cursor`; hits that end there may start from it.
  virtual void store_windows(const ChainCursor& cursor, int32_t place) = 0;
  // The state stored there, if it still is, goes before all others.
  virtual void retire_windows(const ChainCursor& cursor) = 0;
};

}  // namespace deepinfer::sched
