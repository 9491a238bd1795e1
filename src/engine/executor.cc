#include "engine/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "base/thread_pool.h"

namespace deepinfer::engine {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct BufferPlan {
  TensorView logits, draft_logits, draft_tokens, confidence;
};

bool is_stop(const SequenceSpec& spec, int32_t token) {
  return std::binary_search(spec.stop_ids.begin(), spec.stop_ids.end(), token);
}

// A token that must come needs no row: nothing else is told of it, and nothing but the grammar could forbid it.
bool is_told_by_token(const SequenceSpec& spec) {
  return !spec.wants_logprobs && !spec.params.wants_smaller_mass && spec.golden.empty() && spec.params.banned.empty() &&
         spec.params.bad_words.empty();
}

// A device error in the middle of a step may come before some of its sequences were started; they end with their runs.
constexpr const char* kLost = "the step that started this sequence failed";

BufferPlan plan_buffers(Arena& arena, const ModelConfig& config, int max_logit_rows, int max_sequences) {
  int n = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
  BufferPlan p;
  p.logits = arena.matrix(DType::kF32, max_logit_rows, config.vocab_size);
  p.draft_logits = arena.matrix(DType::kF32, int64_t{max_sequences} * n, config.vocab_size);
  p.draft_tokens = arena.matrix(DType::kI32, n, max_sequences);
  p.confidence = arena.matrix(DType::kF32, max_sequences, n);
  return p;
}

}  // namespace

int64_t Executor::buffer_bytes(const ModelConfig& config, int max_logit_rows, int max_sequences) {
  Arena arena;
  plan_buffers(arena, config, max_logit_rows, max_sequences);
  return arena.peak();
}

Executor::Executor(Parts parts) : parts_(std::move(parts)), config_(parts_.model->config()) {
  if (parts_.draft_quality && parts_.num_drafts > 0) simulated_.emplace(*parts_.draft_quality, parts_.num_drafts);
  workers_.resize(static_cast<size_t>(parts_.num_threads));
  for (Worker& w : workers_) w.workspace.row.reserve(config_.vocab_size);
  ids_.reserve(static_cast<size_t>(parts_.max_rows));
  logit_rows_.reserve(static_cast<size_t>(parts_.max_logit_rows));
}

Result<std::unique_ptr<Executor>> Executor::create(Parts parts) {
  int64_t bytes = buffer_bytes(parts.model->config(), parts.max_logit_rows, parts.max_sequences);
  DI_TRY(DeviceBuffer memory, parts.device->allocate(bytes));
  std::unique_ptr<Executor> executor(new Executor(std::move(parts)));
  executor->memory_ = std::move(memory);
  Arena arena(executor->memory_.data(), bytes);
  BufferPlan p =
      plan_buffers(arena, executor->config_, executor->parts_.max_logit_rows, executor->parts_.max_sequences);
  executor->logits_ = executor->host_logits_ = p.logits;
  executor->draft_output_ = {p.draft_logits, p.draft_tokens, p.confidence};
  executor->host_draft_tokens_ = p.draft_tokens;
  executor->host_confidence_ = p.confidence;
  if (executor->is_host()) return executor;
  auto plan_host = [&](Arena& host) {
    executor->host_logits_ = host.matrix(DType::kF32, p.logits.rows, p.logits.cols);
    executor->host_draft_logits_ = host.matrix(DType::kF32, executor->parts_.max_sequences, p.logits.cols);
    executor->host_draft_tokens_ = host.matrix(DType::kI32, p.draft_tokens.rows, p.draft_tokens.cols);
    executor->host_confidence_ = host.matrix(DType::kF32, p.confidence.rows, p.confidence.cols);
  };
  Arena counting;
  plan_host(counting);
  DI_TRY(executor->host_memory_, executor->parts_.device->allocate_host(counting.peak()));
  Arena host(executor->host_memory_.data(), counting.peak());
  plan_host(host);
  return executor;
}

StepResult Executor::execute(StepJob job) {
  StepResult result{.step = job.plan.step};
  for (const auto& end : job.plan.ends) {
    auto it = sequences_.find(static_cast<int32_t>(end.seq));
    if (it != sequences_.end() && it->second.epoch == end.epoch) sequences_.erase(it);
  }
  for (size_t i = 0; i < job.plan.starts.size(); ++i) start(job.plan.starts[i], std::move(job.starts[i]));
  std::vector<RunResult> lost;
  bind(job.plan, lost);
  result.runs.resize(bound_.size());
  if (bound_.empty()) {
    result.runs = std::move(lost);
    return result;
  }

  measure(result);
  double t0 = now_us();
  forward();
  double t1 = now_us();
  sample(result.runs);
  store_windows(result.runs);
  double t2 = now_us();
  if (job.plan.proposes) propose(result.runs);
  result.forward_us = t1 - t0;
  result.sampling_us = t2 - t1;
  if (job.plan.proposes) result.draft_us = now_us() - t2;
  result.runs.insert(result.runs.end(), lost.begin(), lost.end());
  return result;
}

// The shape of the step, for the cost model.
void Executor::measure(StepResult& result) const {
  result.num_rows = static_cast<int>(ids_.size());
  for (const Bound& b : bound_) {
    if (!b.run->decode) continue;
    ++result.num_decodes;
    result.context_tokens += b.first_pos + b.num_rows;
  }
  result.is_decode_only = result.num_decodes == static_cast<int>(bound_.size());
}

void Executor::start(const sched::PlannedStart& start, StartData data) {
  Sequence s{.epoch = start.epoch,
             .slot = start.slot,
             .spec = std::move(data.spec),
             .tokens = std::move(data.tokens),
             .blocks = start.blocks};
  if (start.fork_slot >= 0) {
    parts_.states->copy_slot(*parts_.stream, start.slot, start.fork_slot);
  } else {
    parts_.states->hand_out(*parts_.stream, start.slot);
  }
  if (start.windows_from >= 0)
    parts_.windows->load(*parts_.stream, *parts_.states, start.slot, start.windows_from, start.start_pos);
  if (start.copy_block_from >= 0) parts_.global->copy_block(*parts_.stream, start.copy_block_to, start.copy_block_from);
  s.output.assign(s.tokens.begin() + s.spec->prompt_length, s.tokens.end());
  s.draft_laws.resize(static_cast<size_t>(parts_.num_drafts));
  if (s.spec->params.has_penalties()) {
    s.counts.add_prompt(std::span(s.tokens).first(static_cast<size_t>(s.spec->prompt_length)));
    for (int32_t id : s.output) s.counts.add(id);
  }
  if (s.spec->grammar) {
    s.grammar.emplace(*s.spec->grammar);
    if (auto started = s.grammar->start(*s.spec->grammar, s.output); !started) s.failure = started.error();
  }
  sequences_.insert_or_assign(static_cast<int32_t>(start.seq), std::move(s));
}

// Lays the runs' rows out in the batch.
void Executor::bind(const sched::StepPlan& plan, std::vector<RunResult>& lost) {
  bound_.clear();
  ids_.clear();
  logit_rows_.clear();
  context_.clear();
  for (const sched::PlannedRun& run : plan.runs) {
    auto it = sequences_.find(static_cast<int32_t>(run.seq));
    if (it == sequences_.end() || it->second.epoch != run.epoch) {
      lost.push_back({.seq = run.seq, .epoch = run.epoch, .error = Error{Code::kInternal, kLost}});
      continue;
    }
    Sequence& s = it->second;
    for (const sched::MovedBlock& moved : run.moved_blocks) s.blocks[static_cast<size_t>(moved.index)] = moved.block;
    s.blocks.insert(s.blocks.end(), run.new_blocks.begin(), run.new_blocks.end());
    Bound b{.run = &run,
            .sequence = &s,
            .row_begin = static_cast<int>(ids_.size()),
            .num_rows = run.rows,
            .first_pos = run.first_pos};
    if (run.decode) {
      b.num_rows = std::min<int>(run.rows, 1 + static_cast<int>(s.drafts.size()));
      b.first_pos = static_cast<int64_t>(s.tokens.size()) - 1;
      ids_.push_back(s.tokens.back());
      ids_.insert(ids_.end(), s.drafts.begin(), s.drafts.begin() + b.num_rows - 1);
    } else {
      ids_.insert(ids_.end(), s.tokens.begin() + b.first_pos, s.tokens.begin() + b.first_pos + b.num_rows);
    }
    b.num_logits = run.decode || s.spec->wants_prompt_logprobs ? b.num_rows : run.sample ? 1 : 0;
    b.logit_begin = static_cast<int>(logit_rows_.size());
    for (int i = b.num_rows - b.num_logits; i < b.num_rows; ++i) logit_rows_.push_back(b.row_begin + i);
    if (!config_.engram_layer_ids.empty()) {
      b.context_size = static_cast<int>(std::min<int64_t>(b.first_pos, config_.engram_max_ngram_size - 1));
      b.context_begin = static_cast<int>(context_.size());
      for (int64_t p = b.first_pos - b.context_size; p < b.first_pos; ++p) {
        context_.push_back((*parts_.compressed_ids)[static_cast<size_t>(s.tokens[static_cast<size_t>(p)])]);
      }
    }
    bound_.push_back(b);
  }
}

void Executor::forward() {
  rows_.clear();
  for (const Bound& b : bound_) {
    const sched::ChunkPlan chunk = sched::plan_chunk({.chunk = {b.first_pos, b.first_pos + b.num_rows},
                                                      .kept_from = b.run->kept_from,
                                                      .valid_from = b.run->window_floor,
                                                      .hit_tokens = b.run->write_floor},
                                                     parts_.replay);
    rows_.push_back({.slot = b.sequence->slot,
                     .block_table = b.sequence->blocks.data(),
                     .first_pos = b.first_pos,
                     .num_rows = b.num_rows,
                     .window_floor = chunk.producers.visible_from,
                     .write_floor = chunk.producers.global_write_from,
                     .keep_from = chunk.consumers.rows.begin,
                     .consumer_floor = chunk.consumers.visible_from,
                     .context = std::span(context_).subspan(static_cast<size_t>(b.context_begin),
                                                            static_cast<size_t>(b.context_size))});
  }
  model::ForwardBatch batch{
      .sequences = rows_, .ids = ids_, .logit_rows = logit_rows_, .padding_slot = 0, .logit_room = logits_.rows};
  const TensorView logits = logits_.row_range(0, static_cast<int64_t>(logit_rows_.size()));
  parts_.model->forward(batch, logits);
  if (!is_host()) parts_.stream->copy(host_logits_.data, logits.data, logits.rows * logits.row_bytes());
  parts_.stream->synchronize();
}

void Executor::sample(std::vector<RunResult>& results) {
  std::atomic<size_t> next{0};
  parts_.stream->pool().share([&](int thread) {
    Worker& worker = workers_[static_cast<size_t>(thread)];
    for (size_t i; (i = next.fetch_add(1)) < bound_.size();) {
      const Bound& b = bound_[i];
      results[i].seq = b.run->seq;
      results[i].epoch = b.run->epoch;
      results[i].planned_rows = b.run->rows;
      results[i].first_pos = b.first_pos;
      results[i].end_pos = b.first_pos + b.num_rows;
      if (b.sequence->spec->wants_prompt_logprobs && !b.run->decode) report_prompt(b, worker, results[i]);
      if (b.run->sample) sample_run(b, worker, results[i]);
    }
  });
}

void Executor::sample_run(const Bound& b, Worker& worker, RunResult& result) {
  Sequence& s = *b.sequence;
  const SequenceSpec& spec = *s.spec;
  if (s.failure) return void(result.error = s.failure);
  int rows = b.run->decode ? b.num_rows : 1;
  result.drafted = rows - 1;
  worker.logits.clear();
  worker.masks.clear();
  worker.laws.clear();
  worker.golden.clear();
  for (int k = 0; k < rows; ++k) {
    worker.logits.push_back(host_logits_.f32(b.logit_begin + b.num_logits - rows + k));
    auto produced = s.output.size() + static_cast<size_t>(k);
    if (!spec.golden.empty()) worker.golden.push_back(produced < spec.golden.size() ? spec.golden[produced] : -1);
    if (k + 1 < rows && spec.verify_mode != sampling::VerifyMode::kNoise)
      worker.laws.push_back(&s.draft_laws[static_cast<size_t>(k)]);
    if (!s.grammar) continue;
    auto mask = s.grammar->mask(k);
    if (!mask) return s.drafts.clear(), void(result.error = mask.error());
    worker.masks.push_back(*mask);
  }
  if (simulated_) force_outcome(s, rows, worker.golden);
  sampling::VerifyRequest request{.mode = spec.verify_mode,
                                  .params = &spec.params,
                                  .counts = &s.counts,
                                  .output = &s.output,
                                  .stream = block_of(s),
                                  .logits = worker.logits,
                                  .vocab = config_.vocab_size,
                                  .masks = worker.masks,
                                  .drafts = std::span(s.drafts).first(static_cast<size_t>(rows - 1)),
                                  .draft_laws = worker.laws,
                                  .golden = worker.golden};
  auto done = sampling::verify(request, worker.workspace, &worker.verdict);
  s.drafts.clear();
  if (!done) {
    result.error = done.error();
    return;
  }
  result.labels = worker.verdict.labels;
  for (size_t k = 0; simulated_ && k < result.labels.size(); ++k)
    result.labels[k] = static_cast<float>(simulated_->acceptance(block_of(s), static_cast<int>(k)));
  result.label_logits.assign(s.confidences.begin(),
                             s.confidences.begin() + static_cast<std::ptrdiff_t>(result.labels.size()));
  for (int k = 0; k < worker.verdict.num_tokens; ++k) {
    sampling::TokenReport& report = worker.verdict.tokens[static_cast<size_t>(k)];
    s.tokens.push_back(report.token);
    s.output.push_back(report.token);
    if (spec.params.has_penalties()) s.counts.add(report.token);
    result.tokens.push_back(report);
    if (is_stop(spec, report.token)) break;
  }
  if (!s.grammar) return;
  auto committed = s.grammar->commit(std::span(s.output).last(result.tokens.size()));
  if (!committed) return void(result.error = committed.error());
  end_by_grammar(s, result);
}

// Where the grammar leaves nothing but the end, the end token is told without the forward pass that would choose it. A
// step that is planned already runs as if it had not been; its result is void.
void Executor::end_by_grammar(Sequence& s, RunResult& result) {
  if (!is_told_by_token(*s.spec) || is_stop(*s.spec, s.tokens.back())) return;
  if (static_cast<int64_t>(s.tokens.size()) >= s.spec->max_total) return;
  const std::optional<int32_t> token = s.grammar->end_token();
  if (!token || !is_stop(*s.spec, *token)) return;
  result.tokens.push_back({.token = *token});
  result.has_end_token = true;
}

// Golden tokens that accept and reject the drafts as the simulation has it.
void Executor::force_outcome(const Sequence& s, int rows, std::vector<int32_t>& golden) const {
  golden.assign(static_cast<size_t>(rows), -1);
  for (int k = 0; k + 1 < rows; ++k) {
    const int32_t draft = s.drafts[static_cast<size_t>(k)];
    const bool is_accepted = simulated_->is_accepted(block_of(s), k);
    golden[static_cast<size_t>(k)] = is_accepted ? draft : (draft + 1) % config_.vocab_size;
    if (!is_accepted) return;
  }
}

// Before the draft pass writes behind the committed positions: until then the rings hold the window before each
// position that the step passed.
void Executor::store_windows(std::vector<RunResult>& results) {
  for (size_t i = 0; i < bound_.size(); ++i) {
    const Bound& b = bound_[i];
    const int64_t end = b.run->sample ? static_cast<int64_t>(b.sequence->tokens.size()) - 1 : results[i].end_pos;
    if (results[i].error || b.run->windows_at <= b.first_pos || b.run->windows_at > end) continue;
    parts_.windows->store(*parts_.stream, b.run->windows_to, *parts_.states, b.sequence->slot, b.run->windows_at);
    results[i].stored_windows = true;
  }
}

// Row i of the chunk predicts the token at position i + 1.
void Executor::report_prompt(const Bound& b, Worker& worker, RunResult& result) {
  const Sequence& s = *b.sequence;
  for (int i = 0; i < b.num_rows; ++i) {
    int64_t target = b.first_pos + i + 1;
    if (target >= s.spec->prompt_length) break;
    sampling::Row row{.logits = host_logits_.f32(b.logit_begin + i),
                      .vocab = config_.vocab_size,
                      .params = &s.spec->params,
                      .counts = &s.counts};
    sampling::TokenReport report;
    auto done = sampling::sample_row(row, {}, s.tokens[static_cast<size_t>(target)], worker.workspace.row, &report);
    if (!done) {
      result.error = done.error();
      return;
    }
    result.prompt.push_back(std::move(report));
  }
}

bool Executor::wants_drafts(const Sequence& s) const {
  return parts_.num_drafts > 0 && s.spec->uses_drafts && static_cast<int64_t>(s.tokens.size()) < s.spec->max_total &&
         !is_stop(*s.spec, s.tokens.back());
}

// Random numbers of the drafts after the sequence's last token.
sampling::Stream Executor::block_of(const Sequence& s) {
  return {s.spec->seed, static_cast<uint32_t>(s.tokens.size()), s.spec->choice};
}

void Executor::propose(std::vector<RunResult>& results) {
  draft_sequences_.clear();
  drafting_.clear();
  for (size_t i = 0; i < bound_.size(); ++i) {
    Bound& b = bound_[i];
    if (!b.run->sample || results[i].error || results[i].has_end_token || !wants_drafts(*b.sequence)) continue;
    draft_sequences_.push_back({.slot = b.sequence->slot,
                                .last_pos = static_cast<int64_t>(b.sequence->tokens.size()) - 2,
                                .anchor = b.sequence->tokens.back(),
                                .window_floor = b.run->kept_from});
    drafting_.push_back(&b);
  }
  if (draft_sequences_.empty()) return;
  auto n = static_cast<int64_t>(draft_sequences_.size());
  model::DraftOutput out{draft_output_.logits.row_range(0, n * config_.dspark_block_size),
                         TensorView{draft_output_.tokens.data, DType::kI32, config_.dspark_block_size, n, n},
                         draft_output_.confidence.row_range(0, n)};
  auto pick = [this](int k, const TensorView& logits, int32_t* tokens) { pick_drafts(k, logits, tokens); };
  parts_.model->propose(draft_sequences_, pick, out);
  const TensorView confidence = host_confidence_.row_range(0, n);
  if (!is_host()) parts_.stream->copy(confidence.data, out.confidence.data, n * confidence.row_bytes());
  parts_.stream->synchronize();

  for (size_t i = 0; i < drafting_.size(); ++i) {
    Sequence& s = *drafting_[i]->sequence;
    RunResult& result = results[static_cast<size_t>(drafting_[i] - bound_.data())];
    s.confidences.clear();
    for (int k = 0; k < s.num_proposed; ++k) {
      s.drafts.push_back(static_cast<const int32_t*>(host_draft_tokens_.data)[k * n + static_cast<int64_t>(i)]);
      bool is_grammars = (s.likely_drafts >> k & 1) != 0;
      s.confidences.push_back(is_grammars  ? std::numeric_limits<float>::infinity()
                              : simulated_ ? simulated_->confidence_logit(block_of(s), k)
                                           : confidence.f32(static_cast<int64_t>(i))[k]);
    }
    result.confidences = s.confidences;
  }
}

void Executor::pick_drafts(int k, const TensorView& logits, int32_t* tokens) {
  TensorView rows = logits;
  if (!is_host()) {
    rows = host_draft_logits_.row_range(0, logits.rows);
    for (int64_t i = 0; i < rows.rows; ++i) parts_.stream->copy(rows.f32(i), logits.f32(i), rows.row_bytes());
    parts_.stream->synchronize();
  }
  auto* picked = static_cast<int32_t*>(host_draft_tokens_.data) + k * rows.rows;
  std::atomic<size_t> next{0};
  parts_.stream->pool().share([&](int thread) {
    sampling::Workspace& ws = workers_[static_cast<size_t>(thread)].workspace.row;
    for (size_t i; (i = next.fetch_add(1)) < drafting_.size();)
      picked[i] = pick_draft(k, rows.f32(static_cast<int64_t>(i)), *drafting_[i]->sequence, ws);
  });
  if (!is_host()) parts_.stream->copy(tokens, picked, rows.rows * 4);
}

// Draft k of a sequence. Once the grammar lets nothing follow, the rest of the block is not proposed.
int32_t Executor::pick_draft(int k, float* logits, Sequence& s, sampling::Workspace& ws) {
  if (k == 0) s.num_proposed = 0, s.likely_drafts = 0, s.likely.clear();
  if (k >= parts_.num_drafts || s.num_proposed < k) return s.tokens.back();
  bool common = s.spec->verify_mode == sampling::VerifyMode::kNoise;
  sampling::Distribution& law = common ? ws.law : s.draft_laws[static_cast<size_t>(k)];
  sampling::Row row{.logits = logits,
                    .vocab = config_.vocab_size,
                    .params = &s.spec->draft_params,
                    .counts = &s.counts,
                    .output = s.output};
  if (s.grammar) {
    auto mask = s.grammar->mask(k);
    if (!mask) return s.tokens.back();
    row.mask = *mask;
    if (s.likely.empty()) {
      s.likely = s.grammar->likely_next(parts_.num_drafts - k);
      std::reverse(s.likely.begin(), s.likely.end());
    }
  }
  if (!s.likely.empty()) {
    law.set_one_hot(s.likely.back());
    s.likely.pop_back();
    s.likely_drafts |= uint64_t{1} << k;
  } else if (!sampling::shape_row(row, ws, &law)) {
    law.set_one_hot(0);  // no usable logit: any token will do, it is verified
  }
  int32_t token = sampling::draw_draft(law, block_of(s), k, s.spec->verify_mode);
  if (!s.grammar || s.grammar->accept_draft(token).value_or(false)) s.num_proposed = k + 1;
  return token;
}

}  // namespace deepinfer::engine
