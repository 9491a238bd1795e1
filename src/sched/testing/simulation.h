// The scheduler against a simulated executor: tokens come from a hash of (sequence key, position), so that any run of a
// sequence must give the same text, whatever was batched, preempted, cut or found in the prefix cache. A block holds
// the tokens that were computed into it, so that a wrong block table is seen, and a place of stored windows the tokens
// before its boundary. For tests only.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "sched/block_ledger.h"
#include "sched/index_ledger.h"
#include "sched/scheduler.h"

namespace deepinfer::sched {

// Blocks without a prefix cache: only the counting.
class CountingLedger final : public BlockLedger {
 public:
  explicit CountingLedger(int n) : holders_(static_cast<size_t>(n) + 1) {
    for (int32_t b = n; b >= 1; --b) free_.push_back(b);
  }
  int64_t num_blocks() const override { return static_cast<int64_t>(holders_.size()) - 1; }
  int64_t num_available() const override { return static_cast<int64_t>(free_.size()); }
  std::optional<int32_t> take() override {
    if (free_.empty()) return std::nullopt;
    int32_t b = free_.back();
    free_.pop_back();
    holders_[static_cast<size_t>(b)] = 1;
    return b;
  }
  void share(int32_t b) override { holders_[static_cast<size_t>(b)]++; }
  void give_back(int32_t b) override {
    if (--holders_[static_cast<size_t>(b)] == 0) free_.push_back(b);
  }
  PrefixHit match(std::span<const int32_t>, const std::string&, int64_t, bool) override { return {}; }
  ChainCursor open_chain(const std::string&) override { return {}; }
  bool is_cached(const ChainCursor&) const override { return true; }
  int32_t publish(ChainCursor& cursor, std::span<const int32_t>, int32_t block) override {
    cursor.num_blocks++;
    return block;
  }
  std::optional<int32_t> take_windows() override { return std::nullopt; }
  void give_back_windows(int32_t) override {}
  void store_windows(const ChainCursor&, int32_t) override {}
  void retire_windows(const ChainCursor&) override {}

 private:
  std::vector<int> holders_;
  std::vector<int32_t> free_;
};

inline int32_t token_at(int64_t key, int64_t position) {
  return static_cast<int32_t>((key * 7919 + position * 104729) % 1000);
}

struct Client {
  int64_t key = 0, prompt = 0, max_total = 0;
  std::vector<int32_t> tokens;
  int terminals = 0;
  int64_t arrival_us = 0, first_token_us = -1;
  std::vector<int32_t> blocks;  // as the executor knows them
  int64_t cached_tokens = 0;    // of its last start
};

enum class Sharing : uint8_t { kNone, kPrefixCache };

// Runs plans one step behind, as the engine does, with random acceptance.
class Simulation {
 public:
  static constexpr int32_t kWindowPlaces = 6;
  using Tokens = std::vector<int32_t>;

  Simulation(const SchedulerConfig& config, int num_blocks, uint32_t seed, Sharing sharing = Sharing::kNone)
      : ledger_(make_ledger(num_blocks, sharing)),
        scheduler_(config, *ledger_),
        rng_(seed),
        num_blocks_(num_blocks),
        contents_(static_cast<size_t>(num_blocks) + 1) {}

  SeqId add(NewSequence spec, int64_t key) {
    Client c{.key = key,
             .prompt = static_cast<int64_t>(spec.tokens.size()),
             .max_total = spec.max_total,
             .tokens = spec.tokens,
             .arrival_us = now_us_};
    SeqId id = scheduler_.add(std::move(spec)).value();
    clients_[id] = c;
    return id;
  }

  // Plans a step, then commits the step before it.
  void step() {
    now_us_ += 1000;
    StepPlan plan = scheduler_.plan(now_us_);
    for (auto& [seq, reason] : scheduler_.take_ended()) clients_.at(seq).terminals++;
    check(plan);
    inflight_.push_back(std::move(plan));
    while (inflight_.size() > 1) execute_oldest();
    scheduler_.check_invariants();
  }
  bool finish(int max_steps = 200000) {
    while ((scheduler_.has_work() || !inflight_.empty()) && max_steps-- > 0) {
      step();
      if (inflight_.size() == 1 && inflight_.front().empty()) inflight_.pop_front();
    }
    return !scheduler_.has_work();
  }

  void check(const StepPlan& plan) {
    std::set<SeqId> seen;
    int rows = 0;
    for (const auto& r : plan.runs) {
      EXPECT_TRUE(seen.insert(r.seq).second) << describe(plan);
      rows += r.rows;
      EXPECT_GE(r.rows, 1);
    }
    EXPECT_EQ(rows, plan.num_rows);
    for (const auto& s : plan.starts) num_resumed += s.epoch > 0;
    for (const auto& r : plan.runs)
      table_entries_sent += static_cast<int64_t>(r.new_blocks.size() + r.moved_blocks.size());
    least_available = std::min(least_available, ledger_->num_available());
    max_rows_seen = std::max(max_rows_seen, rows);
  }

  void execute_oldest() {
    StepPlan plan = std::move(inflight_.front());
    inflight_.pop_front();
    for (const PlannedStart& s : plan.starts) {
      Client& c = clients_.at(s.seq);
      c.blocks = s.blocks;
      if (s.windows_from >= 0) {
        ++num_from_windows;
        EXPECT_EQ(places_[static_cast<size_t>(s.windows_from)],
                  Tokens(c.tokens.begin(), c.tokens.begin() + static_cast<std::ptrdiff_t>(s.start_pos)));
      }
      c.cached_tokens = static_cast<int64_t>(s.blocks.size()) * kBlockTokens;
      if (s.copy_block_from >= 0)
        contents_[static_cast<size_t>(s.copy_block_to)] = contents_[static_cast<size_t>(s.copy_block_from)];
    }
    for (const PlannedRun& r : plan.runs) {
      auto it = clients_.find(r.seq);
      Client& c = it->second;
      compute(r, c);
      if (fails_one_in > 0 && rng_() % static_cast<uint32_t>(fails_one_in) == 0) {
        scheduler_.cancel(r.seq);  // what the engine does with a run that failed
        continue;
      }
      RunCommit commit{.seq = r.seq, .epoch = r.epoch, .computed = r.first_pos + r.rows};
      if (r.sample) {
        // Fewer rows may have run than were planned, and fewer drafts were accepted than ran.
        int accepted = r.decode ? static_cast<int>(rng_() % static_cast<uint32_t>(r.rows)) : 0;
        if (c.first_token_us < 0) c.first_token_us = now_us_;
        commit.planned_rows = r.decode ? r.rows : 0;
        auto position = static_cast<int64_t>(c.tokens.size());
        for (int i = 0; i <= accepted && position + i < c.max_total; ++i)
          commit.tokens.push_back(token_at(c.key, position + i));
        commit.finished = position + static_cast<int64_t>(commit.tokens.size()) >= c.max_total;
      }
      if (commit.tokens.empty() && r.sample) continue;  // ran past the end: the sequence is finished already
      commit.stored_windows = store_windows(r, c, commit.tokens);
      if (!scheduler_.commit(commit)) continue;
      c.tokens.insert(c.tokens.end(), commit.tokens.begin(), commit.tokens.end());
      if (commit.finished) c.terminals++;
    }
  }

  // Copies if this run passes the boundary, as the executor does.
  bool store_windows(const PlannedRun& r, const Client& c, const std::vector<int32_t>& committed) {
    Tokens known = c.tokens;
    known.insert(known.end(), committed.begin(), committed.end());
    const auto length = static_cast<int64_t>(known.size());
    const int64_t begin = r.decode ? static_cast<int64_t>(c.tokens.size()) - 1 : r.first_pos;
    if (r.windows_at <= begin || r.windows_at > (r.sample ? length - 1 : r.first_pos + r.rows)) return false;
    known.resize(static_cast<size_t>(r.windows_at));
    places_[static_cast<size_t>(r.windows_to)] = std::move(known);
    return true;
  }

  void expect_everything_returned() {
    EXPECT_EQ(ledger_->num_available(), num_blocks_);
    if (auto* index = dynamic_cast<IndexLedger*>(ledger_.get())) {
      const cache::WindowPlaces& places = index->index().window_places();
      EXPECT_EQ(places.num_free() + places.num_stored(), kWindowPlaces);
    }
    for (auto& [id, c] : clients_) EXPECT_EQ(c.terminals, 1) << static_cast<int>(id);
  }

  // Writes a run's rows into its blocks; everything before them must be there.
  void compute(const PlannedRun& r, Client& c) {
    for (const MovedBlock& moved : r.moved_blocks) c.blocks[static_cast<size_t>(moved.index)] = moved.block;
    c.blocks.insert(c.blocks.end(), r.new_blocks.begin(), r.new_blocks.end());
    const int64_t begin = r.decode ? static_cast<int64_t>(c.tokens.size()) - 1 : r.first_pos;
    for (int64_t at = begin - 1; at >= 0; at -= kBlockTokens / 2)
      ASSERT_EQ(content(c, at), c.tokens[static_cast<size_t>(at)]) << "position " << at;
    for (int64_t at = std::max(begin, r.write_floor); at < begin + r.rows; ++at)
      content(c, at) = token_of(c, at);  // drafts that are rejected are written again
  }
  // The prompt's own token, or the one that the output has there.
  static int32_t token_of(const Client& c, int64_t position) {
    return position < c.prompt ? c.tokens[static_cast<size_t>(position)] : token_at(c.key, position);
  }
  int32_t& content(const Client& c, int64_t position) {
    const auto block = static_cast<size_t>(c.blocks[static_cast<size_t>(position / kBlockTokens)]);
    return contents_[block][static_cast<size_t>(position % kBlockTokens)];
  }

  static std::unique_ptr<BlockLedger> make_ledger(int num_blocks, Sharing sharing) {
    if (sharing == Sharing::kNone) return std::make_unique<CountingLedger>(num_blocks);
    return std::make_unique<IndexLedger>(num_blocks, "key", cache::Digest{}, kWindowPlaces);
  }

  std::unique_ptr<BlockLedger> ledger_;
  Scheduler scheduler_;
  std::map<SeqId, Client> clients_;
  std::deque<StepPlan> inflight_;
  std::mt19937 rng_;
  int num_blocks_;
  std::vector<std::array<int32_t, kBlockTokens>> contents_;  // tokens of each block
  std::vector<Tokens> places_{kWindowPlaces};                // tokens before the windows of each place
  int64_t now_us_ = 0;
  int max_rows_seen = 0;
  int64_t table_entries_sent = 0;  // to the executor, hits not counted
  int64_t least_available = INT64_MAX;
  int num_resumed = 0;       // starts after a preemption
  int num_from_windows = 0;  // starts from stored windows
  int fails_one_in = 0;      // runs; 0: none
};

inline NewSequence sequence(int64_t key, int64_t prompt, int64_t output, int64_t arrival_us = 0) {
  NewSequence s;
  for (int64_t i = 0; i < prompt; ++i) s.tokens.push_back(token_at(key, i));
  s.max_total = prompt + output;
  s.arrival_us = arrival_us;
  return s;
}

inline SchedulerConfig small_config() {
  return {.max_rows = 64, .max_running = 8, .num_slots = 9, .num_drafts = 5, .max_length = 4096};
}

}  // namespace deepinfer::sched
