// The way in: what is wrong with a request, its grammar, and the sequences that it becomes. Callers' threads run it up
// to the inbox, the scheduling thread from there on.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

constexpr int64_t kFarMs = int64_t{1} << 40;  // 34 years: later than anything, and far from an overflow

}  // namespace

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
  state->submitted_us = steady_now_us();
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

void EngineImpl::admit(std::unique_ptr<RequestState> state) {
  int64_t now = steady_now_us();
  RequestState& r = *state;
  r.queued_us = now;
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
  bool is_late =
      why.code == Code::kDeadline && steady_now_us() - r.submitted_us >= std::min(deadline_ms, kFarMs) * 1000;
  FinishReason reason = is_late                        ? FinishReason::kDeadline
                        : why.code == Code::kCancelled ? FinishReason::kCancelled
                                                       : FinishReason::kError;
  std::vector<ChoiceState*> choices;
  for (auto& c : r.choices) choices.push_back(c.get());
  for (ChoiceState* c : choices)
    end_choice(*c, reason, why.message, reason == FinishReason::kError && exit_code(why) == 2);
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

}  // namespace deepinfer::engine
