#include "deepinfer/engine.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/grammar_setup.h"
#include "text/compressed_vocabulary.h"
#include "weights/model_path.h"

namespace deepinfer {

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "cancelled", "deadline", "error"};
  return kNames[static_cast<int>(reason)];
}

Outcome<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  auto settings = engine::read_settings();
  if (!settings) return Failure{true, settings.error().message};
  auto created = engine::EngineImpl::create(options, *settings);
  if (!created) return Failure{exit_code(created.error()) == 2, created.error().message};
  return std::unique_ptr<Engine>(std::move(*created));
}

namespace engine {
namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kFarMs = int64_t{1} << 40;  // 34 years: later than anything, and far from an overflow

std::string random_bytes(size_t n) {
  std::random_device device;
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(device());
  return bytes;
}

// Everything that makes cached rows of one engine unusable to another.
Result<cache::Digest> cache_namespace(const weights::Checkpoint& checkpoint, const EngineOptions& options,
                                      kernels::Ops& ops) {
  DI_TRY(std::string tokenizer, read_file(options.tokenizer + "/tokenizer.json"));
  std::string model = config_json(checkpoint.config());
  std::string index_path = checkpoint.directory() + "/model.safetensors.index.json";
  if (file_exists(index_path)) {
    DI_TRY(std::string index, read_file(index_path));
    model += index;
  }
  auto digest = [](const std::string& text) { return hex(sha256(std::as_bytes(std::span(text)))); };
  return cache::namespace_digest(
      {.model_digest = digest(model),
       .kv_format = fmt::format("{} {}", kernels::numerics_name(ops.numerics()), ops.description()),
       .tokenizer_digest = digest(tokenizer)});
}

}  // namespace

// ---- start and end ----------------------------------------------------------------------------------------------

Result<std::unique_ptr<EngineImpl>> EngineImpl::create(const EngineOptions& options, const Settings& settings) {
  DI_TRY(const Backend backend, choose_backend(options.numerics, options.backend, settings.accelerator));
  return create(options, settings, backend);
}

Result<std::unique_ptr<EngineImpl>> EngineImpl::create(const EngineOptions& options, const Settings& settings,
                                                       const Backend& backend) {
  EngineOptions resolved = options;
  DI_TRY(resolved.model, weights::resolve_model(options.model));
  if (options.tokenizer.empty()) {
    resolved.tokenizer = resolved.model;
  } else {
    DI_TRY(resolved.tokenizer, weights::resolve_model(options.tokenizer));
  }
  DI_TRY(weights::Checkpoint checkpoint, weights::Checkpoint::open(resolved.model));
  DI_TRY(text::Tokenizer tokenizer, text::Tokenizer::load(resolved.tokenizer));
  std::unique_ptr<EngineImpl> engine(new EngineImpl(std::move(checkpoint), std::move(tokenizer), resolved, settings));
  DI_TRY_VOID(engine->build(backend));
  return engine;
}

EngineImpl::EngineImpl(weights::Checkpoint checkpoint, text::Tokenizer tokenizer, const EngineOptions& options,
                       const Settings& settings)
    : options_(options), settings_(settings), checkpoint_(std::move(checkpoint)), tokenizer_(std::move(tokenizer)) {}

Result<void> EngineImpl::build(const Backend& backend) {
  if (!config().engram_layer_ids.empty()) {
    text::CompressedVocabulary compressed = text::compress_vocabulary(tokenizer_);
    if (compressed.size != config().engram_compressed_vocab_size) {
      return fail(Code::kInvalid,
                  "the tokenizer gives {} compressed ids; config.json's engram_compressed_vocab_size is {}",
                  compressed.size, config().engram_compressed_vocab_size);
    }
    compressed_ids_ = std::move(compressed.ids);
  }
  int num_threads = options_.num_threads > 0 ? options_.num_threads : available_threads();
  DI_TRY(const std::unique_ptr<Device> device, backend.make_device());
  DI_TRY(int64_t placed_bytes,
         model::Model::weight_bytes(checkpoint_, {}, 0, *device, config().num_nextn_predict_layers > 0));
  const int64_t free_memory = device->free_memory();
  if (placed_bytes >= free_memory) {
    return fail(Code::kExhausted, "the weights take {} bytes of {} free on {}", placed_bytes, free_memory,
                device->description());
  }
  DI_TRY(plan_,
         plan_memory(config(), options_, settings_, *backend.make_ops(), num_threads, free_memory - placed_bytes));
  for (const auto& spec : checkpoint_.specs()) {
    auto bytes = weights::slice_bytes(spec, checkpoint_.whole(spec));
    plan_.weight_bytes += bytes.codes + bytes.scales;
  }

  model::RanksOptions ranks{.plan = {},
                            .make_ops = backend.make_ops,
                            .make_device = backend.make_device,
                            .threads = num_threads,
                            .num_blocks = plan_.num_blocks + 1,
                            .num_slots = plan_.num_slots + 1,
                            .backtracking = static_cast<int>(plan_.replay.backtracking),
                            .model = {.limits = {.max_rows = plan_.max_rows,
                                                 .max_sequences = plan_.max_sequences,
                                                 .max_positions = config().max_position_embeddings},
                                      .with_draft = plan_.num_drafts > 0,
                                      .compressed_ids = compressed_ids_}};
  DI_TRY(ranks_, model::Ranks::create(checkpoint_, std::move(ranks)));
  model::Rank& rank = (*ranks_)[0];
  DI_TRY(executor_, Executor::create({.model = rank.model.get(),
                                      .global = &rank.global,
                                      .states = &rank.states,
                                      .device = rank.device.get(),
                                      .stream = rank.stream.get(),
                                      .compressed_ids = &compressed_ids_,
                                      .num_threads = num_threads,
                                      .max_rows = plan_.max_rows,
                                      .max_logit_rows = plan_.max_logit_rows,
                                      .max_sequences = plan_.max_sequences,
                                      .num_drafts = plan_.num_drafts,
                                      .replay = plan_.replay}));

  const int64_t window = config().sliding_window;
  int boundary = config().boundary_layer() < 0 ? config().num_hidden_layers : config().boundary_layer();
  sched::SchedulerConfig sc{.max_rows = plan_.max_rows,
                            .max_logit_rows = plan_.max_logit_rows,
                            .max_running = plan_.max_sequences,
                            .num_slots = plan_.num_slots,
                            .num_drafts = plan_.num_drafts,
                            .max_length = plan_.max_model_len,
                            .max_step_us = options_.max_step_ms * 1000,
                            .bounded_replay = window,
                            .producer_replay = sched::deep_replay(window, boundary),
                            .full_replay = sched::deep_replay(window, config().num_hidden_layers)};
  // Names are keyed anew in every process, so that nobody can compute one beforehand.
  std::string key = random_bytes(32);
  DI_TRY(cache::Digest name_space, cache_namespace(checkpoint_, options_, *backend.make_ops()));
  ledger_ = std::make_unique<sched::IndexLedger>(static_cast<int32_t>(plan_.num_blocks), key, name_space);
  scheduler_ = std::make_unique<sched::Scheduler>(sc, *ledger_);
  if (plan_.num_drafts > 0) DI_TRY_VOID(plan_drafts());
  stats_.blocks = stats_.blocks_available = plan_.num_blocks;
  stats_.max_sequences = plan_.max_sequences;
  stats_.drafted_by_position.resize(static_cast<size_t>(plan_.num_drafts));
  stats_.accepted_by_position.resize(static_cast<size_t>(plan_.num_drafts));
  compiler_ = std::make_unique<grammar::Compiler>(
      [this] { return grammar_vocabulary(tokenizer_, config().vocab_size, config().eos_token_id); },
      grammar::Compiler::Options{.num_threads = settings_.grammar_threads,
                                 .cache_bytes = settings_.grammar_cache_bytes,
                                 .timeout_s = settings_.grammar_timeout_s});
  schedule_thread_ = std::thread([this] { schedule_loop(); });
  execute_thread_ = std::thread([this] { execute_loop(); });
  return {};
}

// How many drafts a step verifies is chosen live, from what steps cost and from how often drafts were accepted.
Result<void> EngineImpl::plan_drafts() {
  auto count = static_cast<int>(settings_.confidence_temperature.size());
  if (count > 1 && count != plan_.num_drafts) {
    return fail(Code::kInvalid,
                "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE has {} values; allowed: one, or {} for {} drafts", count,
                plan_.num_drafts, plan_.num_drafts);
  }
  using Mode = sched::DraftMode;
  sched::DraftConfig config{.max_draft = plan_.num_drafts,
                            .mode = settings_.varlen < 0    ? Mode::kAuto
                                    : settings_.varlen == 0 ? Mode::kFixed
                                                            : Mode::kScheduled,
                            .bytes_per_token = static_cast<double>(plan_.block_bytes) / 128};
  cost_ = std::make_unique<sched::CostModel>(
      sched::CostPrior{.num_experts = checkpoint_.config().n_routed_experts,
                       .experts_per_token = checkpoint_.config().num_experts_per_tok});
  planner_ = std::make_unique<sched::DraftPlanner>(config, *cost_);
  std::vector<double> temperatures(settings_.confidence_temperature.begin(), settings_.confidence_temperature.end());
  calibration_ = std::make_unique<sched::Calibration>(plan_.num_drafts, temperatures, settings_.batch_invariant);
  scheduler_->set_draft_policy([this](auto queries, auto drafts) { return planner_->plan(queries, drafts); });
  return {};
}

EngineImpl::~EngineImpl() {
  compiler_.reset();  // requests that wait for it come in, refused
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  scheduling_.notify_all();
  executing_.notify_all();
  if (schedule_thread_.joinable()) schedule_thread_.join();
  if (execute_thread_.joinable()) execute_thread_.join();
}

std::string EngineImpl::description() const {
  std::string text = fmt::format("model      {}, {} layers, hidden {}, {} experts\n", checkpoint_.directory(),
                                 config().num_hidden_layers, config().hidden_size, config().n_routed_experts);
  model::Rank& rank = (*ranks_)[0];
  text += fmt::format("device     {}, {}, numerics {}\n", rank.device->description(), rank.ops->description(),
                      kernels::numerics_name(rank.ops->numerics()));
  text += plan_.description();
  for (const std::string& note : settings_.notes) text += note + "\n";
  return text;
}

// ---- requests ---------------------------------------------------------------------------------------------------

CacheMode EngineImpl::cache_mode_of(const SamplingParams& p) const {
  if (p.prompt_logprobs) return CacheMode::kOff;
  if (p.cache_mode) return *p.cache_mode;
  if (options_.cache_mode >= 0) return static_cast<CacheMode>(options_.cache_mode);
  return settings_.batch_invariant || p.seed ? CacheMode::kExact : CacheMode::kBounded;
}

std::optional<Failure> EngineImpl::check(const SamplingParams& params) const {
  auto valid = sampling::validate(
      params, {.vocab = config().vocab_size, .context_length = plan_.max_model_len, .prompt_length = 1});
  if (valid && params.so_args) valid = grammar::check_structured_output(*params.so_args, config().vocab_size);
  if (valid) return std::nullopt;
  return Failure{true, valid.error().message};
}

Result<std::unique_ptr<RequestState>> EngineImpl::accept(Request request, Sink sink) const {
  sampling::Limits limits{.vocab = config().vocab_size,
                          .context_length = plan_.max_model_len,
                          .prompt_length = static_cast<int64_t>(request.prompt.size())};
  if (request.prompt.empty()) return fail(Code::kInvalid, "prompt is empty; at least one token is needed");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    int32_t id = request.prompt[i];
    if (id < 0 || id >= config().vocab_size) {
      return fail(Code::kInvalid, "prompt token {} is {}; allowed: 0 to {}", i, id, config().vocab_size - 1);
    }
  }
  if (limits.prompt_length >= plan_.max_model_len) {
    return fail(Code::kInvalid, "the prompt has {} tokens; the context length is {}, one of them for the answer",
                limits.prompt_length, plan_.max_model_len);
  }
  DI_TRY_VOID(sampling::validate(request.sampling, limits));
  auto state = std::make_unique<RequestState>();
  if (const auto& so_args = request.sampling.so_args) {
    DI_TRY_VOID(grammar::check_structured_output(*so_args, config().vocab_size));
    DI_TRY(state->tag, grammar::make_structural_tag(*so_args));
  }
  state->request = std::move(request);
  state->sink = std::move(sink);
  state->submitted_us = now_us();
  return state;
}

Outcome<uint64_t> EngineImpl::submit(Request request, Sink sink) {
  auto state = accept(std::move(request), std::move(sink));
  if (!state) return Failure{exit_code(state.error()) == 2, state.error().message};
  uint64_t id = 0;
  bool has_grammar = (*state)->request.sampling.so_args.has_value();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Failure{false, "the engine is shutting down"};
    id = (*state)->id = next_request_++;
    if (has_grammar) {
      compiling_.emplace(id, std::move(*state));
    } else {
      inbox_.push_back(std::move(*state));
    }
  }
  if (has_grammar) {
    compile_grammar(id);
  } else {
    scheduling_.notify_one();
  }
  return id;
}

void EngineImpl::compile_grammar(uint64_t request) {
  grammar::StructuralTag tag;
  auto deadline = grammar::Compiler::Clock::time_point::max();
  {
    std::lock_guard lock(mutex_);
    auto it = compiling_.find(request);
    if (it == compiling_.end()) return;  // cancelled already
    tag = it->second->tag;
    const auto& wanted_ms = it->second->request.sampling.deadline_ms;
    if (wanted_ms && *wanted_ms < kFarMs)
      deadline = grammar::Compiler::Clock::now() + std::chrono::milliseconds(*wanted_ms);
  }
  compiler_->compile(tag, deadline, [this, request](auto grammar) { compiled(request, std::move(grammar)); });
}

void EngineImpl::compiled(uint64_t request, Result<std::shared_ptr<const grammar::Grammar>> grammar) {
  {
    std::lock_guard lock(mutex_);
    auto node = compiling_.extract(request);
    if (node.empty()) return;  // cancelled meanwhile
    if (grammar) {
      node.mapped()->grammar = std::move(*grammar);
    } else {
      node.mapped()->refusal = grammar.error();
    }
    inbox_.push_back(std::move(node.mapped()));
  }
  scheduling_.notify_one();
}

void EngineImpl::cancel(uint64_t request, int choice) {
  {
    std::lock_guard lock(mutex_);
    cancels_.push_back({request, choice});
  }
  scheduling_.notify_one();
}

std::shared_ptr<const SequenceSpec> EngineImpl::make_spec(const RequestState& state, int choice) const {
  // The draft law of a request that stores it is cut to this many tokens: 4 KiB a draft instead of a vocabulary.
  constexpr int kDraftSupport = 512;
  const SamplingParams& p = state.request.sampling;
  std::vector<int32_t> banned;
  for (auto [first, last] : settings_.blacklist) {
    for (int32_t id = first; id <= std::min(last, config().vocab_size - 1); ++id) banned.push_back(id);
  }
  auto spec = std::make_shared<SequenceSpec>();
  spec->params = sampling::make_row_params(
      p, {.eos_id = config().eos_token_id, .banned = banned, .force_top_k = settings_.sampler_force_topk});
  spec->draft_params = sampling::draft_params(spec->params, kDraftSupport);
  spec->seed = p.seed ? *p.seed : sampling::derive_seed(options_.seed, std::to_string(state.id));
  spec->choice = static_cast<uint32_t>(choice);
  spec->prompt_length = static_cast<int64_t>(state.request.prompt.size());
  spec->max_total = std::min(plan_.max_model_len, spec->prompt_length + std::max(1, p.max_tokens));
  spec->golden = p.golden_token_ids;
  spec->stop_ids = p.stop_token_ids;
  if (!p.ignore_eos) spec->stop_ids.push_back(config().eos_token_id);
  std::sort(spec->stop_ids.begin(), spec->stop_ids.end());
  bool repeatable = settings_.batch_invariant || p.seed || spec->params.is_greedy;
  spec->verify_mode = repeatable ? sampling::VerifyMode::kNoise : sampling::VerifyMode::kBlock;
  spec->wants_logprobs = p.logprobs || p.top_logprobs > 0;
  spec->wants_prompt_logprobs = p.prompt_logprobs;
  spec->uses_drafts = plan_.num_drafts > 0;
  if (p.so_args) {
    spec->grammar = GrammarSpec{.grammar = state.grammar,
                                .trigger = grammar::Trigger(p.so_args->trigger_token_ids, p.so_args->bound_token_id),
                                .prefix = p.so_args->prefix};
  }
  return spec;
}

sched::NewSequence EngineImpl::make_sequence(const RequestState& state, const ChoiceState& choice, int64_t now) const {
  const SamplingParams& p = state.request.sampling;
  sched::NewSequence s;
  s.tokens = state.request.prompt;
  s.max_total = choice.spec->max_total;
  s.priority = p.priority;
  s.tenant = state.request.tenant;
  s.share_key = state.request.tenant + '\0' + p.cache_salt;
  s.arrival_us = now;
  if (p.deadline_ms) s.deadline_us = state.submitted_us + std::min(*p.deadline_ms, kFarMs) * 1000;
  CacheMode mode = cache_mode_of(p);
  s.reuse = mode == CacheMode::kExact ? sched::ReuseMode::kExact
            : mode == CacheMode::kOff ? sched::ReuseMode::kOff
                                      : sched::ReuseMode::kBounded;
  s.is_draft_independent = choice.spec->verify_mode == sampling::VerifyMode::kNoise || choice.spec->params.is_greedy;
  s.all_logits = p.prompt_logprobs;
  const bool truncates = plan_.replay.truncation != sched::Truncation::kOff && !p.prompt_logprobs;
  s.keep_tokens = truncates ? plan_.replay.keep : 0;
  if (choice.index > 0) s.leader = state.choices.front()->seq;
  return s;
}

std::vector<int32_t> EngineImpl::encode(const std::string& text) const {
  std::vector<int32_t> ids;
  tokenizer_.encode(text, ids);
  return ids;
}

std::string EngineImpl::decode(std::span<const int32_t> ids) const {
  return tokenizer_.decode(ids);
}

EngineStats EngineImpl::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<StepRecord> EngineImpl::recent_steps() const {
  std::lock_guard lock(mutex_);
  return {steps_.begin(), steps_.end()};
}

// ---- executing thread -------------------------------------------------------------------------------------------

void EngineImpl::execute_loop() {
  while (true) {
    StepJob job;
    double waited = 0;
    {
      std::unique_lock lock(mutex_);
      int64_t begin = now_us();
      executing_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      waited = static_cast<double>(now_us() - begin);
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    StepResult result;
    int64_t begin = now_us();
    std::vector<sched::PlannedRun> runs = job.plan.runs;
    try {
      result = executor_->execute(std::move(job));
    } catch (const DeviceError& e) {
      Error error{Code::kInternal, e.what()};
      for (const auto& run : runs) result.runs.push_back({.seq = run.seq, .epoch = run.epoch, .error = error});
    }
    {
      std::lock_guard lock(mutex_);
      if (result.num_rows > 0) {
        stats_.steps += 1;
        stats_.rows += result.num_rows;
        stats_.idle_ms += waited / 1000;
        stats_.forward_ms += result.forward_us / 1000;
        stats_.sampling_ms += result.sampling_us / 1000;
        stats_.draft_ms += result.draft_us / 1000;
        record(result, begin);
      }
      results_.push_back(std::move(result));
    }
    scheduling_.notify_one();
  }
}

// With mutex_ held.
void EngineImpl::record(const StepResult& result, int64_t begin_us) {
  constexpr size_t kMostSteps = 8192;
  if (steps_.size() == kMostSteps) steps_.pop_front();
  steps_.push_back({.step = static_cast<int64_t>(result.step),
                    .begin_us = begin_us,
                    .rows = result.num_rows,
                    .decodes = result.num_decodes,
                    .num_running = stats_.num_running,
                    .num_waiting = stats_.num_waiting,
                    .forward_us = result.forward_us,
                    .sampling_us = result.sampling_us,
                    .draft_us = result.draft_us});
}

// ---- scheduling thread ------------------------------------------------------------------------------------------

void EngineImpl::schedule_loop() {
  constexpr int64_t kLongestWaitUs = 3'600'000'000;
  const size_t ahead = settings_.async_steps ? kStepsAhead : 1;
  while (true) {
    std::vector<std::unique_ptr<RequestState>> arrivals;
    std::vector<Cancellation> cancels;
    std::deque<StepResult> results;
    {
      std::unique_lock lock(mutex_);
      auto ready = [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || !results_.empty(); };
      std::optional<int64_t> deadline = scheduler_->next_deadline_us();
      // A deadline takes effect when a step is planned; with all steps planned, their results come first.
      if (deadline && unfinished_jobs_ < ahead) {
        scheduling_.wait_for(
            lock, std::chrono::microseconds(std::clamp<int64_t>(*deadline - now_us(), 0, kLongestWaitUs)), ready);
      } else {
        scheduling_.wait(lock, ready);
      }
      if (stopping_) break;
      arrivals.swap(inbox_);
      cancels.swap(cancels_);
      for (auto [id, choice] : cancels) {
        auto it = compiling_.find(id);
        if (it == compiling_.end()) continue;
        if (choice != kAllChoices) {
          it->second->early_cancels.push_back(choice);
          continue;
        }
        it->second->refusal = Error{Code::kCancelled, ""};
        arrivals.push_back(std::move(it->second));
        compiling_.erase(it);
      }
      results.swap(results_);
      unfinished_jobs_ -= results.size();
    }
    for (StepResult& r : results) commit(r);
    for (auto& a : arrivals) admit(std::move(a));
    for (auto [id, choice] : cancels) {
      auto it = requests_.find(id);
      if (it == requests_.end()) continue;
      for (auto& c : it->second->choices) {
        if (!c->ended && (choice == kAllChoices || choice == c->index)) scheduler_->cancel(c->seq);
      }
    }
    while (unfinished_jobs_ < ahead) {
      size_t before = unfinished_jobs_;
      dispatch();
      if (unfinished_jobs_ == before) break;
    }
  }
  std::vector<ChoiceState*> open;
  for (auto& [seq, choice] : choices_) open.push_back(choice);
  for (ChoiceState* c : open) end_choice(*c, FinishReason::kCancelled, "the engine was closed");
  for (auto& state : inbox_) {
    for (int i = 0; i < state->request.sampling.n; ++i) {
      state->sink({.request = state->id,
                   .choice = i,
                   .finish_reason = FinishReason::kCancelled,
                   .error = "the engine was closed"});
    }
  }
}

void EngineImpl::admit(std::unique_ptr<RequestState> state) {
  int64_t now = now_us();
  RequestState& r = *state;
  requests_.emplace(r.id, std::move(state));
  for (int i = 0; i < r.request.sampling.n; ++i) {
    auto choice = std::make_unique<ChoiceState>();
    choice->request = &r;
    choice->index = i;
    choice->spec = make_spec(r, i);
    choice->detokenizer.emplace(tokenizer_);
    choice->stops.emplace(r.request.sampling.stop);
    choice->usage.prompt_tokens = static_cast<int64_t>(r.request.prompt.size());
    r.choices.push_back(std::move(choice));
  }
  if (r.refusal) return refuse(r);
  std::vector<std::pair<ChoiceState*, Error>> refused;
  for (auto& c : r.choices) {
    auto added = scheduler_->add(make_sequence(r, *c, now));
    if (added) {
      c->seq = *added;
      choices_.emplace(static_cast<int32_t>(c->seq), c.get());
    } else {
      refused.emplace_back(c.get(), added.error());
    }
  }
  for (auto& c : r.choices) {
    if (std::ranges::find(r.early_cancels, c->index) != r.early_cancels.end()) scheduler_->cancel(c->seq);
  }
  for (auto& [c, why] : refused) end_choice(*c, FinishReason::kError, why.message, exit_code(why) == 2);
}

// Ends a request that was refused after it had been taken in; the last end takes the request away.
void EngineImpl::refuse(RequestState& r) {
  Error why = *r.refusal;
  int64_t deadline_ms = r.request.sampling.deadline_ms.value_or(kFarMs);
  bool is_late = why.code == Code::kDeadline && now_us() - r.submitted_us >= std::min(deadline_ms, kFarMs) * 1000;
  FinishReason reason = is_late                        ? FinishReason::kDeadline
                        : why.code == Code::kCancelled ? FinishReason::kCancelled
                                                       : FinishReason::kError;
  std::vector<ChoiceState*> choices;
  for (auto& c : r.choices) choices.push_back(c.get());
  for (ChoiceState* c : choices)
    end_choice(*c, reason, why.message, reason == FinishReason::kError && exit_code(why) == 2);
}

void EngineImpl::dispatch() {
  int64_t begin = now_us();
  StepJob job{.plan = scheduler_->plan(begin)};
  for (auto [seq, reason] : scheduler_->take_ended()) {
    auto it = choices_.find(static_cast<int32_t>(seq));
    if (it == choices_.end()) continue;
    bool late = reason == sched::EndReason::kDeadline;
    end_choice(*it->second, late ? FinishReason::kDeadline : FinishReason::kCancelled,
               late ? "the deadline passed" : "");
  }
  for (const auto& start : job.plan.starts) {
    auto tokens = scheduler_->tokens(start.seq);
    job.starts.push_back({{tokens.begin(), tokens.end()}, choices_.at(static_cast<int32_t>(start.seq))->spec});
  }
  {
    std::lock_guard lock(mutex_);
    stats_.planning_ms += static_cast<double>(now_us() - begin) / 1000;
    stats_.num_waiting = scheduler_->num_waiting();
    stats_.num_running = scheduler_->num_running();
    stats_.blocks_available = ledger_->num_available();
    if (job.plan.empty()) return;
    jobs_.push_back(std::move(job));
    ++unfinished_jobs_;
  }
  executing_.notify_one();
}

void EngineImpl::commit(const StepResult& result) {
  if (result.num_rows > 0)
    scheduler_->observe(result.num_rows, result.forward_us + result.sampling_us + result.draft_us);
  learn(result);
  for (const RunResult& run : result.runs) commit_run(run);
  if (options_.log_statistics && settings_.logging_interval_steps > 0 &&
      result.step % static_cast<uint64_t>(settings_.logging_interval_steps) == 0) {
    log_statistics();
  }
}

// Feeds what a step cost and brought to the choice of draft widths.
void EngineImpl::learn(const StepResult& result) {
  if (!planner_ || !result.is_decode_only || result.num_rows == 0) return;
  double bytes = static_cast<double>(result.context_tokens) * static_cast<double>(plan_.block_bytes) / 128;
  cost_->observe({result.num_rows, bytes}, result.forward_us / 1000);
  planner_->observe_sampler(result.num_decodes, result.sampling_us / 1000);
  if (result.draft_us > 0) planner_->observe_draft_pass(result.num_decodes, result.draft_us / 1000);
  int emitted = 0;
  for (const RunResult& run : result.runs) emitted += static_cast<int>(run.tokens.size());
  planner_->observe_emitted(result.expected_tokens, emitted);
}

// Corrects the head by the drafts that were verified; the new drafts' survivals, products of corrected confidences.
std::vector<float> EngineImpl::survivals_of(const ChoiceState& choice, const RunResult& run) {
  double temperature = choice.request->request.sampling.temperature;
  for (size_t k = 0; k < run.labels.size(); ++k)
    calibration_->observe(static_cast<int>(k), temperature, run.label_logits[k], run.labels[k]);
  std::vector<float> survivals;
  for (size_t k = 0; k < run.confidences.size(); ++k) {
    float confidence = calibration_->confidence(static_cast<int>(k), temperature, run.confidences[k]);
    survivals.push_back(k == 0 ? confidence : survivals.back() * confidence);
  }
  return survivals;
}

// Applies the stop rules to the tokens of one run, tells the scheduler what counts, then publishes it.
void EngineImpl::commit_run(const RunResult& run) {
  auto it = choices_.find(static_cast<int32_t>(run.seq));
  if (it == choices_.end()) return;
  ChoiceState& choice = *it->second;
  if (run.error) {
    scheduler_->cancel(run.seq);
    end_choice(choice, FinishReason::kError, run.error->message, exit_code(*run.error) == 2);
    return;
  }
  std::vector<int32_t> ids;
  for (const auto& report : run.tokens) ids.push_back(report.token);
  const SamplingParams& p = choice.request->request.sampling;
  sampling::StopRule rule{.eos_id = config().eos_token_id,
                          .ignores_eos = p.ignore_eos,
                          .stop_ids = p.stop_token_ids,
                          .max_tokens = choice.spec->max_total - choice.spec->prompt_length};
  sampling::StopCut cut = sampling::cut_at_stop(ids, choice.num_output, rule);
  ids.resize(static_cast<size_t>(cut.kept));
  sched::SequenceStats reuse = scheduler_->stats(run.seq);
  choice.usage.cached_tokens = reuse.cached_tokens;
  choice.usage.replayed_tokens = reuse.replayed_tokens;
  choice.preemptions = reuse.preemptions;
  // Stop strings are found while publishing, so the scheduler is told first and hears of that end as a cancellation.
  if (!scheduler_->commit({.seq = run.seq,
                           .epoch = run.epoch,
                           .computed = run.end_pos,
                           .tokens = ids,
                           .planned_rows = run.planned_rows,
                           .survivals = calibration_ ? survivals_of(choice, run) : std::vector<float>(),
                           .finished = cut.reason != sampling::StopReason::kNone})) {
    return;
  }
  if (choice.num_output == 0 && !run.prompt.empty()) {  // by position: after a preemption the rows run again
    choice.prompt_logprobs.resize(static_cast<size_t>(run.first_pos));
    for (const auto& r : run.prompt) choice.prompt_logprobs.push_back(r.raw_logprob);
  }
  if (ids.empty()) return;
  choice.usage.steps += 1;
  choice.usage.drafted_tokens += run.drafted;
  choice.usage.accepted_tokens += static_cast<int64_t>(run.tokens.size()) - 1;
  {
    std::lock_guard lock(mutex_);
    stats_.output_tokens += cut.kept;
    stats_.drafted_tokens += run.drafted;
    stats_.accepted_tokens += static_cast<int64_t>(run.tokens.size()) - 1;
    for (int k = 0; k < run.drafted; ++k) {
      stats_.drafted_by_position[static_cast<size_t>(k)] += 1;
      stats_.accepted_by_position[static_cast<size_t>(k)] += k + 1 < static_cast<int>(run.tokens.size());
    }
  }
  for (int k = 0; k < cut.kept; ++k) {
    FinishReason reason = FinishReason::kNone;
    if (k + 1 == cut.kept && cut.reason == sampling::StopReason::kStop) reason = FinishReason::kStop;
    if (k + 1 == cut.kept && cut.reason == sampling::StopReason::kLength) reason = FinishReason::kLength;
    publish(choice, run.tokens[static_cast<size_t>(k)], reason);
    if (reason == FinishReason::kNone) continue;
    if (cut.reason == sampling::StopReason::kNone) scheduler_->cancel(run.seq);
    return;
  }
}

// Sends one token; a stop string completed by it turns `reason` into kStop.
void EngineImpl::publish(ChoiceState& choice, const sampling::TokenReport& report, FinishReason& reason) {
  TokenEvent event{.token = report.token};
  bool is_stop_id = reason == FinishReason::kStop;
  std::string piece;
  if (!is_stop_id) choice.detokenizer->push(report.token, piece);
  if (reason != FinishReason::kNone) choice.detokenizer->finish(piece, text::Detokenizer::CutCharacter::kDrop);
  choice.stops->push(piece, event.text);
  if (choice.stops->is_found()) {
    reason = FinishReason::kStop;
    event.stop = choice.request->request.sampling.stop[static_cast<size_t>(*choice.stops->found())];
  } else if (reason != FinishReason::kNone) {
    choice.stops->finish(event.text);
  }
  choice.num_output += 1;
  if (choice.spec->wants_logprobs) {
    event.logprob =
        choice.spec->params.logprob_kind == LogprobKind::kRaw ? report.raw_logprob : report.processed_logprob;
    for (const auto& top : report.top) event.top_logprobs.push_back({top.id, top.logprob});
  }
  if (choice.num_output == 1) event.prompt_logprobs = std::move(choice.prompt_logprobs);
  event.finish_reason = reason;
  emit(choice, std::move(event));
}

void EngineImpl::end_choice(ChoiceState& choice, FinishReason reason, const std::string& error, bool is_user_error) {
  if (choice.ended) return;
  TokenEvent event{.finish_reason = reason, .error = error, .is_user_error = is_user_error};
  std::string rest;
  choice.detokenizer->finish(rest, text::Detokenizer::CutCharacter::kDrop);
  choice.stops->push(rest, event.text);
  choice.stops->finish(event.text);
  emit(choice, std::move(event));
}

void EngineImpl::emit(ChoiceState& choice, TokenEvent event) {
  RequestState& r = *choice.request;
  event.request = r.id;
  event.choice = choice.index;
  if (event.finish_reason != FinishReason::kNone) {
    choice.ended = true;
    choice.usage.completion_tokens = choice.num_output;
    event.usage = choice.usage;
    count(choice);
  }
  bool is_last = event.finish_reason != FinishReason::kNone;
  r.sink(event);
  if (!is_last) return;
  if (planner_) planner_->forget(static_cast<int32_t>(choice.seq));
  choices_.erase(static_cast<int32_t>(choice.seq));
  if (++r.num_ended == static_cast<int>(r.choices.size())) requests_.erase(r.id);
}

void EngineImpl::count(const ChoiceState& choice) {
  std::lock_guard lock(mutex_);
  stats_.prompt_tokens += choice.usage.prompt_tokens;
  stats_.cached_tokens += choice.usage.cached_tokens;
  stats_.replayed_tokens += choice.usage.replayed_tokens;
  stats_.preemptions += choice.preemptions;
}

void EngineImpl::log_statistics() {
  EngineStats s = stats();
  spdlog::info("step {}: {} running, {} waiting, {} of {} blocks free, {:.2f} rows a step, {} of {} drafts accepted",
               s.steps, s.num_running, s.num_waiting, s.blocks_available, s.blocks,
               static_cast<double>(s.rows) / static_cast<double>(std::max<int64_t>(1, s.steps)), s.accepted_tokens,
               s.drafted_tokens);
}

}  // namespace engine
}  // namespace deepinfer
