#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::sched {

enum class State : uint8_t { kWaiting, kRunning };

// Lengths: `tokens` are prompt and committed output. `planned` positions are computed or in flight. A sequence decodes
// once planned covers all known tokens; from then on each step adds 1 .. rows tokens, and `inflight_tokens` bounds what
// the steps in flight may still add.
struct Scheduler::Sequence {
  SeqId id = kNoSequence;
  Rank rank;
  NewSequence spec;
  State state = State::kWaiting;
  uint32_t epoch = 0;
  std::vector<int32_t> tokens;
  int64_t prompt_length = 0;
  int64_t kept_from = -1;  // fixed at the first admission, so that a resumed sequence keeps the same rows
  int32_t slot = -1;
  std::vector<int32_t> blocks;
  std::vector<MovedBlock> moved_blocks;  // that the executor does not know of yet
  ChainCursor chain;
  int64_t planned = 0;
  int64_t computed = 0;  // positions whose keys are committed
  int64_t write_floor = 0, window_floor = 0;
  bool decoding = false;  // its last prefill chunk is planned
  int inflight_steps = 0;
  int64_t inflight_tokens = 0;
  std::vector<float> survivals;
  bool has_drafts = false;  // the last step planned for it drafts
  bool prefilled = false;   // the prompt's last chunk was committed: forks may start
  bool has_forks = false;   // decodes from that commit on only, so that forks find the state behind the prompt
  struct Storing {
    int64_t boundary;
    int32_t place;
  };
  std::vector<Storing> storing;             // windows that a run in flight may copy
  std::vector<ChainCursor> output_windows;  // stored while decoding, and not retired
  SequenceStats stats;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

namespace {

constexpr int kMinChunkRows = 1;

// Tokens that run again on a hit to regain the window states. Without truncation the consumer layers' windows are not
// rebuilt by the kept rows, so the replay covers all layers, exactly.
int64_t replay_length(const NewSequence& spec, const SchedulerConfig& config) {
  if (spec.keep_tokens <= 0) return config.full_replay;
  return spec.reuse == ReuseMode::kExact ? config.producer_replay : config.bounded_replay;
}

// The last boundary at which a hit of `length` tokens may end, if all of them are cached.
int64_t last_hit_end(int64_t length, std::optional<int64_t> kept_from) {
  return plan_hit({.length = length, .matched_blocks = length / kBlockTokens, .kept_from = kept_from}).hit_tokens;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, BlockLedger& blocks) : config_(config), blocks_(blocks) {
  DI_CHECK(config.max_rows >= 1 + config.num_drafts, "{} rows a step cannot hold one sequence with {} drafts",
           config.max_rows, config.num_drafts);
  DI_CHECK(config.num_slots >= 1 && config.max_running >= 1);
  for (int32_t slot = config.num_slots; slot >= 1; --slot) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() = default;

Scheduler::Sequence& Scheduler::at(SeqId seq) {
  auto it = sequences_.find(static_cast<int32_t>(seq));
  DI_CHECK(it != sequences_.end(), "sequence {}", static_cast<int32_t>(seq));
  return *it->second;
}

const Scheduler::Sequence& Scheduler::at(SeqId seq) const {
  return const_cast<Scheduler*>(this)->at(seq);
}

Result<SeqId> Scheduler::add(NewSequence spec) {
  int64_t prompt = static_cast<int64_t>(spec.tokens.size());
  if (prompt == 0) return fail(Code::kInvalid, "the prompt is empty");
  if (prompt >= config_.max_length) {
    return fail(Code::kInvalid, "the prompt has {} tokens; the context length is {}, one of them for the answer",
                prompt, config_.max_length);
  }
  spec.max_total = std::min(spec.max_total, config_.max_length);
  // Steps in flight may run past the end by two verification widths before the stop is seen.
  int64_t need = ceil_div(spec.max_total + 2 * (config_.num_drafts + 1), kBlockTokens);
  if (need > blocks_.num_blocks()) {
    return fail(Code::kExhausted, "the request may grow to {} tokens, which takes {} cache blocks; there are {}",
                spec.max_total, need, blocks_.num_blocks());
  }
  auto s = std::make_unique<Sequence>();
  s->id = SeqId{next_id_};
  s->tokens = std::move(spec.tokens);
  s->prompt_length = prompt;
  s->spec = std::move(spec);
  s->rank = {s->spec.priority - static_cast<double>(s->spec.arrival_us) / config_.ageing_us, s->spec.arrival_us,
             next_id_};
  SeqId id = s->id;
  if (auto leader = sequences_.find(static_cast<int32_t>(s->spec.leader)); leader != sequences_.end())
    leader->second->has_forks = true;
  tenants_[s->spec.tenant].waiting.emplace(s->rank, s.get());
  if (s->spec.deadline_us) deadlines_.emplace(std::pair(*s->spec.deadline_us, next_id_), s.get());
  sequences_.emplace(next_id_++, std::move(s));
  return id;
}

void Scheduler::cancel(SeqId seq) {
  if (sequences_.contains(static_cast<int32_t>(seq))) cancelled_.push_back(seq);
}

StepPlan Scheduler::plan(int64_t now_us) {
  StepPlan plan;
  plan.step = next_step_;
  end_cancelled_and_late(now_us);
  plan_decodes(plan);
  plan_prefills(plan);
  plan.ends = std::exchange(pending_ends_, {});
  if (!plan.empty()) ++next_step_;
  return plan;
}

void Scheduler::end_cancelled_and_late(int64_t now_us) {
  for (SeqId seq : std::exchange(cancelled_, {})) {
    auto it = sequences_.find(static_cast<int32_t>(seq));
    if (it == sequences_.end()) continue;
    ended_.emplace_back(seq, EndReason::kCancelled);
    forget(*it->second);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now_us) {
    Sequence& s = *deadlines_.begin()->second;
    ended_.emplace_back(s.id, EndReason::kDeadline);
    forget(s);
  }
}

// ---- decode -----------------------------------------------------------------------------------------------------

void Scheduler::plan_decodes(StepPlan& plan) {
  std::vector<Sequence*> decoding;
  for (auto& [rank, s] : running_) {
    if (s->decoding && (s->prefilled || !s->has_forks)) decoding.push_back(s);
  }

  std::vector<DraftQuery> queries;
  for (Sequence* s : decoding) {
    int limit = s->spec.max_drafts < 0 ? config_.num_drafts : std::min(s->spec.max_drafts, config_.num_drafts);
    int64_t room = s->spec.max_total - s->length() - s->inflight_tokens;  // tokens it may still add
    limit = s->has_drafts ? static_cast<int>(std::clamp<int64_t>(room - 1, 0, limit)) : 0;
    queries.push_back({.seq = static_cast<int32_t>(s->id),
                       .limit = limit,
                       .survivals = s->survivals,
                       .is_old = s->inflight_steps > 0,
                       .length = s->length(),
                       .is_draft_independent = s->spec.is_draft_independent});
  }
  if (crowded_drafts_ < config_.num_drafts && is_crowded(queries)) {
    for (DraftQuery& q : queries) q.limit = std::min(q.limit, crowded_drafts_);
  }
  std::vector<int> drafts(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) drafts[i] = queries[i].limit;
  if (draft_policy_) {
    DraftDecision decision = draft_policy_(queries, drafts);
    plan.proposes = decision.wants_drafts;
  }

  for (size_t i = 0; i < decoding.size(); ++i) {
    Sequence& s = *decoding[i];
    if (s.state != State::kRunning) continue;  // preempted for an earlier one of this loop
    int left =
        std::min(config_.max_rows, config_.max_logit_rows) - plan.num_rows - static_cast<int>(decoding.size() - i - 1);
    if (left < 1) break;
    PlannedRun run{.seq = s.id, .epoch = s.epoch, .slot = s.slot, .decode = true};
    run.rows = 1 + std::clamp(drafts[i], 0, std::min(queries[i].limit, left - 1));
    int64_t end = s.length() + s.inflight_tokens + run.rows - 1;
    if (!reserve(s, end, run.new_blocks, plan)) continue;
    // The boundary that it passes if enough drafts are accepted, unless the steps in flight have passed it already.
    const int64_t boundary = end / kBlockTokens * kBlockTokens;
    if (boundary >= s.length() + std::min<int64_t>(s.inflight_tokens, 1)) plan_windows(s, boundary, run);
    run.moved_blocks = std::exchange(s.moved_blocks, {});
    run.sample = true;
    s.has_drafts = plan.proposes;
    run.write_floor = s.write_floor;
    run.kept_from = s.kept_from;
    s.inflight_steps += 1;
    s.inflight_tokens += run.rows;
    tenants_[s.spec.tenant].served_rows += run.rows;
    plan.num_rows += run.rows;
    plan.num_logit_rows += run.rows;
    plan.runs.push_back(std::move(run));
  }
}

// Whether the rows of a step are too few for these sequences with all their drafts and for the prompts that could run.
bool Scheduler::is_crowded(std::span<const DraftQuery> decodes) const {
  int64_t wanted = 0;
  for (const DraftQuery& q : decodes) wanted += 1 + q.limit;
  for (const auto& [rank, s] : running_) {
    if (!s->decoding) wanted += s->length() - s->planned;
  }
  int64_t places = std::min<int64_t>(num_free_slots(), config_.max_running - num_running());
  for (const auto& [name, tenant] : tenants_) {
    for (auto it = tenant.waiting.begin(); it != tenant.waiting.end() && places > 0; ++it, --places)
      wanted += it->second->length();
  }
  return wanted > config_.max_rows;
}

// ---- prefill ----------------------------------------------------------------------------------------------------

int64_t Scheduler::prefill_rows_left(const StepPlan& plan, const Sequence& s) const {
  int64_t left = config_.max_rows - plan.num_rows;
  int64_t logits_left = config_.max_logit_rows - plan.num_logit_rows;
  if (logits_left < 1) return 0;  // a last chunk wants one
  if (s.spec.all_logits) left = std::min(left, logits_left);
  bool decodes = std::any_of(plan.runs.begin(), plan.runs.end(), [](const PlannedRun& r) { return r.decode; });
  if (decodes && config_.max_step_us > 0 && us_per_row_ > 0) {
    auto rows = static_cast<int64_t>((config_.max_step_us - us_fixed_) / us_per_row_);
    // One row at least, so that a prompt moves on even where the bound cannot be kept.
    left = std::min(left, std::max<int64_t>(kMinChunkRows, rows - plan.num_rows));
  }
  return left;
}

void Scheduler::plan_prefills(StepPlan& plan) {
  std::vector<Sequence*> started;
  for (auto& [rank, s] : running_) {
    if (!s->decoding) started.push_back(s);
  }
  for (Sequence* s : started) {
    int64_t left = prefill_rows_left(plan, *s);
    if (left < kMinChunkRows) return;
    if (s->state == State::kRunning) add_chunk(*s, static_cast<int>(std::min(left, s->length() - s->planned)), plan);
  }
  for (Sequence* s : waiting_in_order()) {
    int64_t left = prefill_rows_left(plan, *s);
    if (left < kMinChunkRows) return;
    Admission a = admit(*s, plan);
    if (a == Admission::kNoRoom) return;  // nobody overtakes: the highest rank gets the room that becomes free
    if (a == Admission::kStarted) add_chunk(*s, static_cast<int>(std::min(left, s->length() - s->planned)), plan);
  }
}

// The waiting sequences that could start now at most, by rank; a tenant that has been served more than the least served
// one sinks by up to one point of priority.
std::vector<Scheduler::Sequence*> Scheduler::waiting_in_order() {
  struct Head {
    std::map<Rank, Sequence*>::iterator next, end;
    double penalty;
  };
  double least = -1;
  for (auto& [name, t] : tenants_) {
    if (!t.waiting.empty() && (least < 0 || t.served_rows < least)) least = t.served_rows;
  }
  std::vector<Head> heads;
  for (auto& [name, t] : tenants_) {
    if (!t.waiting.empty())
      heads.push_back(
          {t.waiting.begin(), t.waiting.end(), std::min(1.0, (t.served_rows - least) / (16.0 * config_.max_rows))});
  }
  std::vector<Sequence*> order;
  auto limit = static_cast<size_t>(config_.max_running) + 1;
  while (!heads.empty() && order.size() < limit) {
    size_t best = 0;
    for (size_t i = 1; i < heads.size(); ++i) {
      Rank a = heads[i].next->first, b = heads[best].next->first;
      a.value -= heads[i].penalty;
      b.value -= heads[best].penalty;
      if (a < b) best = i;
    }
    order.push_back(heads[best].next->second);
    if (++heads[best].next == heads[best].end) heads.erase(heads.begin() + static_cast<long>(best));
  }
  return order;
}

void Scheduler::add_chunk(Sequence& s, int rows, StepPlan& plan) {
  PlannedRun run{.seq = s.id, .epoch = s.epoch, .slot = s.slot, .first_pos = s.planned};
  for (int64_t boundary : {s.write_floor, prompt_boundary(s)}) {
    if (boundary <= s.planned || boundary > s.planned + rows) continue;
    plan_windows(s, boundary, run);
    if (run.windows_at > 0) rows = static_cast<int>(boundary - s.planned);
  }
  run.rows = rows;
  if (!reserve(s, s.planned + rows, run.new_blocks, plan)) return;
  s.planned += rows;
  run.moved_blocks = std::exchange(s.moved_blocks, {});
  run.write_floor = s.write_floor;
  run.window_floor = s.window_floor;
  run.kept_from = s.kept_from;
  if (s.planned == s.length()) {
    run.sample = true;
    s.has_drafts = plan.proposes;
    s.decoding = true;
    s.inflight_tokens += 1;
  }
  s.inflight_steps += 1;
  tenants_[s.spec.tenant].served_rows += rows;
  plan.num_rows += rows;
  plan.num_logit_rows += s.spec.all_logits ? rows : run.sample;
  plan.runs.push_back(std::move(run));
}

// Upper bound of the sequence's tokens before this plan's runs.
int64_t Scheduler::tokens_before(const StepPlan& plan, const Sequence& s) const {
  int64_t tokens = s.length() + s.inflight_tokens;
  for (const PlannedRun& r : plan.runs) {
    if (r.seq == s.id) tokens -= r.decode ? r.rows : r.sample;
  }
  return tokens;
}

Scheduler::Admission Scheduler::admit(Sequence& s, StepPlan& plan) {
  Sequence* leader = nullptr;
  if (s.spec.leader != kNoSequence && s.epoch == 0) {  // after a preemption a fork is a sequence like any other
    auto it = sequences_.find(static_cast<int32_t>(s.spec.leader));
    if (it != sequences_.end()) leader = it->second.get();
    if (leader != nullptr && !leader->prefilled) return Admission::kLater;
    // Later, its windows have moved on from the prompt: the fork then computes the prompt itself.
    if (leader != nullptr && tokens_before(plan, *leader) > s.prompt_length + 1) leader = nullptr;
  }
  if (free_slots_.empty() || num_running() >= config_.max_running) {
    // A slot is taken from a sequence of lower priority and rank only: among equals, who runs goes on.
    if (!preempt_below(s, plan, s.spec.priority - 1)) return Admission::kNoRoom;
  }
  if (leader != nullptr && leader->prefilled) return start_fork(s, *leader, plan);

  if (s.kept_from < 0) s.kept_from = s.spec.keep_tokens > 0 ? std::max<int64_t>(0, s.length() - s.spec.keep_tokens) : 0;
  auto [hit, replay] = find_hit(s);
  int64_t missing = ceil_div(s.length(), kBlockTokens) - static_cast<int64_t>(hit.blocks.size());
  // Every running sequence may need one more block soon.
  if (num_running() > 0 && blocks_.num_available() < missing + num_running()) {
    for (int32_t b : hit.blocks) blocks_.give_back(b);
    return Admission::kNoRoom;
  }
  start_running(s);
  s.blocks = std::move(hit.blocks);
  s.chain = hit.cursor;
  s.planned = s.computed = s.window_floor = replay.replay.begin;
  s.write_floor = replay.hit_tokens;
  if (s.epoch == 0) s.stats.miss_cause = hit.missing;
  s.stats.from_stored_windows = hit.windows != kNoWindows;
  if (s.stats.from_stored_windows) s.window_floor = std::max<int64_t>(0, replay.hit_tokens - config_.bounded_replay);
  s.stats.cached_tokens = std::max(s.stats.cached_tokens, replay.hit_tokens);
  s.stats.replayed_tokens += replay.replay.size();
  plan.starts.push_back({.seq = s.id,
                         .epoch = s.epoch,
                         .slot = s.slot,
                         .known_tokens = s.length(),
                         .start_pos = s.planned,
                         .windows_from = hit.windows,
                         .blocks = s.blocks});
  return Admission::kStarted;
}

// The cached blocks that the sequence starts with, held, and which rows run again before the first new one. Stored
// windows are taken if they let it start where a replay would, or later.
std::pair<PrefixHit, HitPlan> Scheduler::find_hit(Sequence& s) {
  const bool truncates = s.spec.keep_tokens > 0;
  HitRequest request{.length = s.length(), .kept_from = std::nullopt, .replay_rows = replay_length(s.spec, config_)};
  if (truncates) request.kept_from = s.kept_from;
  if (s.spec.reuse == ReuseMode::kOff) return {PrefixHit{}, plan_hit(request)};
  request.matched_blocks = blocks_.num_blocks();  // at most
  const int64_t most_blocks = plan_hit(request).hit_tokens / kBlockTokens;
  PrefixHit hit = blocks_.match(s.tokens, s.spec.share_key, most_blocks, s.spec.reuse == ReuseMode::kExact);
  if (most_blocks == 0) hit.missing = MissCause::kBoundary;
  request.matched_blocks = static_cast<int64_t>(hit.blocks.size());
  const int64_t replay_begin = plan_hit(request).replay.begin;
  const int64_t windows_end = hit.windows_cursor.num_blocks * kBlockTokens;
  if (hit.windows != kNoWindows && regains_exactly(s) && windows_end >= replay_begin) {
    for (; static_cast<int64_t>(hit.blocks.size()) > hit.windows_cursor.num_blocks; hit.blocks.pop_back())
      blocks_.give_back(hit.blocks.back());
    request.matched_blocks = hit.windows_cursor.num_blocks;
    request.replay_rows = 0;
    hit.cursor = hit.windows_cursor;
  } else {
    hit.windows = kNoWindows;
    if (replay_begin == 0) {  // replaying everything saves nothing: it runs cold
      for (int32_t b : hit.blocks) blocks_.give_back(b);
      request.matched_blocks = 0;
      hit = {.cursor = blocks_.open_chain(s.spec.share_key),
             .missing = hit.blocks.empty() ? hit.missing : MissCause::kBoundary};
    } else if (truncates && s.spec.reuse == ReuseMode::kBounded) {
      hit.cursor.exact = false;
    }
  }
  hit.cursor.open = true;
  return {std::move(hit), plan_hit(request)};
}

void Scheduler::start_running(Sequence& s) {
  tenants_[s.spec.tenant].waiting.erase(s.rank);
  running_.emplace(s.rank, &s);
  s.state = State::kRunning;
  s.slot = free_slots_.back();
  free_slots_.pop_back();
}

// A fork takes over the leader's state after the whole prompt and runs the prompt's last row once more: same bits, and
// its own logits. Whole blocks are shared, the last, partly filled one is copied.
Scheduler::Admission Scheduler::start_fork(Sequence& s, Sequence& leader, StepPlan& plan) {
  int64_t whole = s.prompt_length / kBlockTokens;
  std::optional<int32_t> copy;
  if (s.prompt_length % kBlockTokens != 0) {
    copy = blocks_.take();
    if (!copy) return Admission::kNoRoom;
  }
  start_running(s);
  s.blocks.assign(leader.blocks.begin(), leader.blocks.begin() + whole);
  for (int32_t b : s.blocks) blocks_.share(b);
  s.chain = leader.chain;
  s.kept_from = leader.kept_from;
  s.write_floor = whole * kBlockTokens;
  s.planned = s.computed = s.prompt_length - 1;
  s.stats.cached_tokens = s.prompt_length - 1;
  PlannedStart start{.seq = s.id,
                     .epoch = s.epoch,
                     .slot = s.slot,
                     .known_tokens = s.length(),
                     .start_pos = s.planned,
                     .fork_slot = leader.slot};
  if (copy) {
    s.blocks.push_back(*copy);
    start.copy_block_from = leader.blocks[static_cast<size_t>(whole)];
    start.copy_block_to = *copy;
  }
  start.blocks = s.blocks;
  plan.starts.push_back(std::move(start));
  return Admission::kStarted;
}

// ---- stored windows ---------------------------------------------------------------------------------------------

// Sequences whose windows after a hit have the bits of a cold run. What is stored serves without truncation only if it
// covers all layers.
bool Scheduler::regains_exactly(const Sequence& s) const {
  if (s.spec.reuse == ReuseMode::kOff) return false;
  return s.spec.keep_tokens > 0 ? s.spec.reuse == ReuseMode::kExact : config_.stores_all_layers;
}

int64_t Scheduler::prompt_boundary(const Sequence& s) const {
  return last_hit_end(s.length(), s.spec.keep_tokens > 0 ? std::optional(s.kept_from) : std::nullopt);
}

// Gives the run a place for the windows behind `boundary`; runs in flight that may pass it share one.
void Scheduler::plan_windows(Sequence& s, int64_t boundary, PlannedRun& run) {
  if (!s.chain.open || !s.chain.exact || !regains_exactly(s)) return;
  auto at = std::ranges::find(s.storing, boundary, &Sequence::Storing::boundary);
  if (at == s.storing.end()) {
    const std::optional<int32_t> place = blocks_.take_windows();
    if (!place) return;
    at = s.storing.insert(at, {boundary, *place});
  }
  run.windows_at = boundary;
  run.windows_to = at->place;
}

// After a commit: the windows that it stored belong to the chain's end; places of passed boundaries come back.
void Scheduler::settle_windows(Sequence& s, bool is_stored) {
  std::erase_if(s.storing, [&](const Sequence::Storing& w) {
    if (w.boundary > s.computed) return false;
    if (!is_stored || !s.chain.open || s.chain.num_blocks * kBlockTokens != w.boundary) {
      blocks_.give_back_windows(w.place);
      return true;
    }
    blocks_.store_windows(s.chain, w.place);
    if (w.boundary <= s.prompt_length) return true;
    // Every continuation can start at `usable` or behind it.
    const int64_t length = w.boundary + 1;
    const bool truncates = s.spec.keep_tokens > 0;
    const int64_t usable = last_hit_end(
        length, truncates ? std::optional(std::max<int64_t>(0, length - s.spec.keep_tokens)) : std::nullopt);
    std::erase_if(s.output_windows, [&](const ChainCursor& earlier) {
      if (earlier.num_blocks * kBlockTokens >= usable) return false;
      blocks_.retire_windows(earlier);
      return true;
    });
    s.output_windows.push_back(s.chain);
    return true;
  });
}

// ---- blocks, preemption, the end --------------------------------------------------------------------------------

bool Scheduler::reserve(Sequence& s, int64_t end_pos, std::vector<int32_t>& appended, StepPlan& plan) {
  int64_t need = ceil_div(end_pos, kBlockTokens);
  while (static_cast<int64_t>(s.blocks.size()) < need) {
    std::optional<int32_t> block = blocks_.take();
    if (!block) {
      if (preempt_below(s, plan)) continue;
      // Nothing of lower rank is left: this one waits. What it took stays with it.
      for (int32_t b : appended) s.blocks.pop_back(), blocks_.give_back(b);
      appended.clear();
      return false;
    }
    s.blocks.push_back(*block);
    appended.push_back(*block);
  }
  return true;
}

// Takes everything from the lowest-ranked running sequence below `s`; a run of this step that is already planned for it
// is withdrawn.
bool Scheduler::preempt_below(const Sequence& s, StepPlan& plan, int max_priority) {
  if (running_.empty()) return false;
  Sequence& victim = *running_.rbegin()->second;
  if (!(s.rank < victim.rank) || victim.spec.priority > max_priority) return false;
  std::erase_if(plan.runs, [&](const PlannedRun& r) {
    if (r.seq != victim.id) return false;
    plan.num_rows -= r.rows;
    plan.num_logit_rows -= r.decode || victim.spec.all_logits ? r.rows : r.sample;
    return true;
  });
  std::erase_if(plan.starts, [&](const PlannedStart& p) { return p.seq == victim.id; });
  pending_ends_.push_back({victim.id, victim.epoch});
  release(victim);
  victim.state = State::kWaiting;
  victim.epoch += 1;
  victim.stats.preemptions += 1;
  victim.decoding = victim.prefilled = false;
  victim.planned = victim.computed = victim.write_floor = victim.window_floor = 0;
  victim.inflight_steps = 0;
  victim.inflight_tokens = 0;
  victim.survivals.clear();
  victim.has_drafts = false;
  running_.erase(victim.rank);
  tenants_[victim.spec.tenant].waiting.emplace(victim.rank, &victim);
  return true;
}

void Scheduler::release(Sequence& s) {
  for (int32_t b : s.blocks) blocks_.give_back(b);
  s.blocks.clear();
  s.moved_blocks.clear();
  for (const Sequence::Storing& w : s.storing) blocks_.give_back_windows(w.place);
  s.storing.clear();
  s.output_windows.clear();
  s.chain = {};
  if (s.slot >= 0) free_slots_.push_back(s.slot);
  s.slot = -1;
}

void Scheduler::forget(Sequence& s) {
  if (s.state == State::kRunning) {
    pending_ends_.push_back({s.id, s.epoch});
    running_.erase(s.rank);
  } else {
    tenants_[s.spec.tenant].waiting.erase(s.rank);
  }
  if (s.spec.deadline_us) deadlines_.erase({*s.spec.deadline_us, static_cast<int32_t>(s.id)});
  release(s);
  sequences_.erase(static_cast<int32_t>(s.id));
}

// ---- results ----------------------------------------------------------------------------------------------------

bool Scheduler::commit(const RunCommit& r) {
  auto it = sequences_.find(static_cast<int32_t>(r.seq));
  if (it == sequences_.end()) return false;
  Sequence& s = *it->second;
  if (s.epoch != r.epoch || s.state != State::kRunning) return false;
  s.inflight_steps -= 1;
  if (!r.tokens.empty()) {
    // A prefill's sampled token takes one place, a decode run one for each of its rows.
    s.inflight_tokens -= s.prefilled ? r.planned_rows : 1;
    s.prefilled = true;
    s.computed = s.length() + static_cast<int64_t>(r.tokens.size()) - 1 - r.has_end_token;
    s.tokens.insert(s.tokens.end(), r.tokens.begin(), r.tokens.end());
    s.survivals = r.survivals;
  } else {
    s.computed = r.computed;
  }
  publish_computed(s);
  settle_windows(s, r.stored_windows);
  if (r.finished) forget(s);
  return true;
}

// Names the blocks that are complete. Where an equal block was first, it takes the place of the own copy: only a chain
// whose blocks are all held stays in the tree, so that what follows it can be found. A step in flight may still read
// the copy; whoever takes it writes in a later step.
void Scheduler::publish_computed(Sequence& s) {
  if (s.chain.open && !blocks_.is_cached(s.chain)) {
    // The own copy of a block had to give way to a better one, which was evicted. All blocks are named again.
    const bool is_exact = s.chain.exact;
    s.chain = blocks_.open_chain(s.spec.share_key);
    s.chain.exact = is_exact;
  }
  while (s.chain.open && (s.chain.num_blocks + 1) * kBlockTokens <= s.computed) {
    const int64_t index = s.chain.num_blocks;
    int32_t& own = s.blocks[static_cast<size_t>(index)];
    const int32_t named = blocks_.publish(
        s.chain, std::span(s.tokens).subspan(static_cast<size_t>(index * kBlockTokens), kBlockTokens), own);
    if (named == own) continue;
    blocks_.share(named);
    blocks_.give_back(own);
    own = named;
    s.moved_blocks.push_back({index, named});
  }
}

void Scheduler::observe(int num_rows, double step_us) {
  // Exponential least squares would need more state; a slow fit of slope through two moving means is enough for a
  // bound.
  constexpr double kShare = 0.1;
  double per_row = step_us / std::max(1, num_rows);
  if (us_per_row_ == 0) us_per_row_ = per_row;
  double predicted = us_fixed_ + us_per_row_ * num_rows;
  double error = step_us - predicted;
  us_per_row_ = std::max(1e-3, us_per_row_ + kShare * error / std::max(8, num_rows));
  us_fixed_ = std::max(0.0, us_fixed_ + kShare * error * 0.1);
}

std::vector<std::pair<SeqId, EndReason>> Scheduler::take_ended() {
  return std::exchange(ended_, {});
}

bool Scheduler::has_work() const {
  return !sequences_.empty() || !pending_ends_.empty();
}

int Scheduler::num_waiting() const {
  return static_cast<int>(sequences_.size()) - num_running();
}

int Scheduler::num_running() const {
  return static_cast<int>(running_.size());
}

std::optional<int64_t> Scheduler::next_deadline_us() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first.first;
}

SequenceStats Scheduler::stats(SeqId seq) const {
  return at(seq).stats;
}

std::span<const int32_t> Scheduler::tokens(SeqId seq) const {
  return at(seq).tokens;
}

void Scheduler::check_invariants() const {
  std::vector<int> slot_holders(static_cast<size_t>(config_.num_slots) + 1);
  for (int32_t slot : free_slots_) slot_holders[static_cast<size_t>(slot)]++;
  for (const auto& [id, s] : sequences_) {
    if (s->slot >= 0) slot_holders[static_cast<size_t>(s->slot)]++;
    DI_CHECK((s->state == State::kRunning) == (s->slot >= 0), "sequence {}", id);
    DI_CHECK(s->state == State::kRunning || s->blocks.empty(), "sequence {} waits and holds blocks", id);
  }
  for (size_t i = 1; i < slot_holders.size(); ++i)
    DI_CHECK(slot_holders[i] == 1, "slot {} has {} holders", i, slot_holders[i]);
}

std::string describe(const StepPlan& plan) {
  std::string out = fmt::format("step {}: {} rows\n", plan.step, plan.num_rows);
  for (const auto& e : plan.ends) out += fmt::format("  end {} epoch {}\n", static_cast<int>(e.seq), e.epoch);
  for (const auto& s : plan.starts) {
    out += fmt::format("  start {} epoch {} slot {} from {} of {} ({} hit blocks{})\n", static_cast<int>(s.seq),
                       s.epoch, s.slot, s.start_pos, s.known_tokens, s.blocks.size(),
                       s.windows_from >= 0 ? fmt::format(", stored windows {}", s.windows_from) : "");
  }
  for (const auto& r : plan.runs) {
    out += r.decode ? fmt::format("  decode {} epoch {}: {} rows\n", static_cast<int>(r.seq), r.epoch, r.rows)
                    : fmt::format("  prefill {} epoch {}: [{}, {}){}\n", static_cast<int>(r.seq), r.epoch, r.first_pos,
                                  r.first_pos + r.rows, r.sample ? ", sampled" : "");
  }
  return out;
}

}  // namespace deepinfer::sched
