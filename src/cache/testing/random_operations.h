// Drives a prefix index and a naive map of whole prefixes with the same random operations and compares them after each:
// for tests. Aborts (DI_CHECK) on the first difference.
//
//   Short alphabets make prompts share prefixes; a small pool forces eviction; short names force collisions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "cache/prefix_index.h"

namespace deepinfer::cache::testing {

struct RandomOperations {
  uint32_t seed = 1;
  int num_operations = 1000;
  int32_t num_blocks = 60;
  int name_bits = 128;
};

using Tokens = std::vector<int32_t>;

// Block k of letter c: 128 equal ids. A prompt is a string of letters and a salt.
inline Tokens tokens_of(const std::string& letters) {
  Tokens t;
  for (char c : letters) t.insert(t.end(), kBlockPositions, c);
  return t;
}

struct Sequence {
  std::string key;  // salt, then letters
  std::vector<int32_t> blocks;
  ChainPosition end;
};

struct Model {
  struct Entry {
    int32_t block;
    bool is_exact;
  };
  std::map<std::string, Entry> cached;  // salt + letters -> block of the last letter
};

class Driver {
 public:
  explicit Driver(const RandomOperations& s)
      : settings_(s), rng_(s.seed), blocks_(s.num_blocks), index_(blocks_, BlockNamer("k", {}, s.name_bits)) {}

  void run() {
    for (int i = 0; i < settings_.num_operations; ++i) {
      int kind = static_cast<int>(rng_() % 16);
      if (kind < 5 && sequences_.size() < 12)
        start();
      else if (kind < 11)
        extend();
      else if (kind < 13)
        finish();
      else if (kind < 14)
        lease(i);
      else
        look_up();
      sync();
      if (i % 64 == 0) compare();
    }
    while (!sequences_.empty()) finish(), sync();
    index_.expire(1ll << 60);
    DI_CHECK(index_.num_available() == settings_.num_blocks, "{} blocks of {} come back", index_.num_available(),
             settings_.num_blocks);
    compare();
  }

 private:
  std::string random_letters() {
    std::string s(1 + rng_() % 6, 'a');
    for (char& c : s) c = static_cast<char>('a' + rng_() % 3);
    return s;
  }

  // Longest cached prefix in the model.
  std::size_t expected(const std::string& key, bool exact_only) const {
    std::size_t n = 0;
    for (; n + 1 < key.size(); ++n) {
      auto at = model_.cached.find(key.substr(0, n + 2));
      if (at == model_.cached.end() || (exact_only && !at->second.is_exact)) break;
    }
    return n;
  }

  void start() {
    Sequence s;
    s.key = std::string(1, static_cast<char>('0' + rng_() % 2)) + random_letters();
    bool exact_only = rng_() % 3 == 0;
    PrefixMatch m = index_.match(s.key.substr(0, 1), tokens_of(s.key.substr(1)), 1 << 20, exact_only);
    DI_CHECK(m.blocks.size() == expected(s.key, exact_only), "{} blocks hit, {} expected for {}", m.blocks.size(),
             expected(s.key, exact_only), s.key);
    for (std::size_t i = 0; i < m.blocks.size(); ++i) {
      DI_CHECK(m.blocks[i] == model_.cached.at(s.key.substr(0, i + 2)).block, "block {} of {}", i, s.key);
      ++held_[m.blocks[i]];
    }
    s.blocks = m.blocks;
    s.end = m.end;
    s.key.resize(s.blocks.size() + 1);
    sequences_.push_back(s);
  }

  void extend() {
    if (sequences_.empty()) return;
    Sequence& s = sequences_[rng_() % sequences_.size()];
    if (s.key.size() > 9) return;
    auto block = index_.take();
    if (!block) {
      DI_CHECK(index_.num_available() == 0, "{} available, none given", index_.num_available());
      return;
    }
    sync();  // what was evicted
    DI_CHECK(held_[*block] == 0, "block {} is held and handed out", *block);
    held_[*block] = 1;
    s.key += static_cast<char>('a' + rng_() % 3);
    s.blocks.push_back(*block);
    Provenance provenance = rng_() % 8 == 0 ? Provenance::kReplayed : Provenance::kExact;
    bool is_exact = provenance == Provenance::kExact && s.end.provenance == Provenance::kExact;
    int64_t nodes = index_.num_nodes();
    int32_t carrier = index_.publish(s.end, tokens_of(s.key.substr(s.key.size() - 1)), *block, provenance);
    auto existing = model_.cached.find(s.key);
    if (existing == model_.cached.end()) {
      if (index_.num_nodes() > nodes)
        model_.cached[s.key] = {*block, is_exact};
      else
        DI_CHECK(
            settings_.name_bits < 128 || !model_.cached.contains(s.key.substr(0, s.key.size() - 1)) || s.end.node < 0,
            "{} was not published", s.key);
    } else if (carrier == *block && blocks_.node(*block) >= 0) {
      DI_CHECK(!existing->second.is_exact && is_exact, "{} was replaced", s.key);
      existing->second = {*block, true};
    }
  }

  void finish() {
    if (sequences_.empty()) return;
    std::size_t i = rng_() % sequences_.size();
    for (int32_t b : sequences_[i].blocks) {
      index_.release(b);
      --held_[b];
    }
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void lease(int now) {
    index_.expire(now);
    if (sequences_.empty()) return;
    index_.pin(sequences_[rng_() % sequences_.size()].end.name, "test", "random",
               now + 1 + static_cast<int>(rng_() % 200));
  }

  void look_up() {
    std::string key = std::string(1, static_cast<char>('0' + rng_() % 2)) + random_letters();
    bool exact_only = rng_() % 2 == 0;
    auto got = static_cast<std::size_t>(index_.probe(key.substr(0, 1), tokens_of(key.substr(1)), 1 << 20, exact_only));
    DI_CHECK(got == expected(key, exact_only), "{} blocks found, {} expected for {}", got, expected(key, exact_only),
             key);
  }

  // Drops what the index evicted from the model: only unheld entries without cached continuations may go.
  void sync() {
    if (index_.stats().evicted == evicted_) return;
    evicted_ = index_.stats().evicted;
    for (auto at = model_.cached.begin(); at != model_.cached.end();) {
      if (blocks_.node(at->second.block) >= 0) {
        ++at;
        continue;
      }
      DI_CHECK(held_[at->second.block] == 0, "{} was evicted in use", at->first);
      auto next = std::next(at);
      DI_CHECK(
          next == model_.cached.end() || !next->first.starts_with(at->first) || blocks_.node(next->second.block) < 0,
          "{} was evicted before its continuation", at->first);
      at = model_.cached.erase(at);
    }
  }

  void compare() {
    index_.check();
    DI_CHECK(index_.num_nodes() == static_cast<int64_t>(model_.cached.size()), "{} nodes, {} expected",
             index_.num_nodes(), model_.cached.size());
    for (auto [block, count] : held_)
      DI_CHECK(blocks_.refs(block) == count, "block {} has {} holders, {} expected", block, blocks_.refs(block), count);
  }

  RandomOperations settings_;
  std::mt19937 rng_;
  BlockAllocator blocks_;
  PrefixIndex index_;
  Model model_;
  std::vector<Sequence> sequences_;
  std::map<int32_t, int32_t> held_;
  int64_t evicted_ = 0;
};

inline void run_random_operations(const RandomOperations& settings) {
  Driver(settings).run();
}

}  // namespace deepinfer::cache::testing
