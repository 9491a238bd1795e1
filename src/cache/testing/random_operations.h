// Drives a prefix index and a naive map of whole prefixes with the same random operations and compares them after each:
// for tests. Aborts (DI_CHECK) on the first difference.
//
//   Short alphabets make prompts share prefixes; small pools of blocks and of window places force eviction; short names
//   force collisions.
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
  int32_t num_window_places = 4;
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
  struct Windows {
    int64_t use = 0;  // 0: retired
    int32_t place = 0;
  };
  std::map<std::string, Windows> windows;  // behind the last letter
};

// Windows on their way into a place.
struct Filling {
  int32_t place = 0;
  std::string key;
  ChainPosition end;
};

class Driver {
 public:
  explicit Driver(const RandomOperations& s)
      : settings_(s),
        rng_(s.seed),
        blocks_(s.num_blocks),
        index_(blocks_, BlockNamer("k", {}, s.name_bits), s.num_window_places) {}

  void run() {
    for (int i = 0; i < settings_.num_operations; ++i) {
      int kind = static_cast<int>(rng_() % 20);
      if (kind < 5 && sequences_.size() < 12)
        start();
      else if (kind < 11)
        extend();
      else if (kind < 13)
        finish();
      else if (kind < 14)
        lease(i);
      else if (kind < 16)
        look_up();
      else if (kind < 18)
        fill_windows();
      else if (kind < 19)
        store_windows();
      else
        retire_windows();
      sync();
      if (i % 64 == 0) compare();
    }
    while (!sequences_.empty()) finish(), sync();
    while (!filling_.empty()) store_windows();
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
    expect_windows(m, s.key);
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

  // The hit's last windows, which count as used.
  void expect_windows(const PrefixMatch& m, const std::string& key) {
    std::size_t n = m.blocks.size();
    while (n > 0 && !model_.windows.contains(key.substr(0, n + 1))) --n;
    DI_CHECK((n > 0) == (m.windows >= 0), "windows of {}", key);
    if (n == 0) return;
    Model::Windows& windows = model_.windows.at(key.substr(0, n + 1));
    DI_CHECK(m.windows == windows.place && m.windows_end.num_blocks == static_cast<int64_t>(n), "windows of {}", key);
    windows.use = ++clock_;
  }

  // Takes a place, as a step would for its copy; what had to go was used least recently, retired ones first.
  void fill_windows() {
    if (sequences_.empty()) return;
    const Sequence& s = sequences_[rng_() % sequences_.size()];
    const std::size_t in_use = model_.windows.size() + filling_.size();
    std::optional<int32_t> place = index_.take_windows();
    DI_CHECK(place.has_value() == (filling_.size() < static_cast<std::size_t>(settings_.num_window_places)),
             "{} filled", filling_.size());
    if (!place) return;
    if (in_use == static_cast<std::size_t>(settings_.num_window_places)) {
      auto next = std::min_element(model_.windows.begin(), model_.windows.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.use, a.second.place) < std::pair(b.second.use, b.second.place);
      });
      DI_CHECK(next->second.place == *place, "place {} was taken, {} should go", *place, next->second.place);
      model_.windows.erase(next);
    }
    for (const auto& [key, windows] : model_.windows)
      DI_CHECK(windows.place != *place, "place {} of {} is handed out", *place, key);
    filling_.push_back({*place, s.key, s.end});
  }

  void store_windows() {
    if (filling_.empty()) return;
    const Filling f = filling_.back();
    filling_.pop_back();
    if (rng_() % 4 == 0) return index_.give_back_windows(f.place);
    const bool is_wanted = f.key.size() > 1 && index_.is_cached(f.end) && model_.cached.at(f.key).is_exact &&
                           !model_.windows.contains(f.key);
    index_.store_windows(f.end, f.place);
    if (is_wanted) model_.windows[f.key] = {++clock_, f.place};
  }

  void retire_windows() {
    if (sequences_.empty()) return;
    const Sequence& s = sequences_[rng_() % sequences_.size()];
    index_.retire_windows(s.end);
    auto at = model_.windows.find(s.key);
    if (at != model_.windows.end() && index_.is_cached(s.end)) at->second.use = 0;
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
      model_.windows.erase(at->first);
      at = model_.cached.erase(at);
    }
  }

  void compare() {
    index_.check();
    DI_CHECK(index_.num_nodes() == static_cast<int64_t>(model_.cached.size()), "{} nodes, {} expected",
             index_.num_nodes(), model_.cached.size());
    DI_CHECK(index_.window_places().num_stored() == static_cast<int32_t>(model_.windows.size()),
             "{} windows, {} stored", model_.windows.size(), index_.window_places().num_stored());
    for (auto [block, count] : held_)
      DI_CHECK(blocks_.refs(block) == count, "block {} has {} holders, {} expected", block, blocks_.refs(block), count);
  }

  RandomOperations settings_;
  std::mt19937 rng_;
  BlockAllocator blocks_;
  PrefixIndex index_;
  Model model_;
  std::vector<Sequence> sequences_;
  std::vector<Filling> filling_;
  std::map<int32_t, int32_t> held_;
  int64_t clock_ = 0;  // counts uses of windows
  int64_t evicted_ = 0;
};

inline void run_random_operations(const RandomOperations& settings) {
  Driver(settings).run();
}

}  // namespace deepinfer::cache::testing
