#include "grammar/matcher.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>

#include "base/check.h"
#include "grammar/limits.h"
#include "grammar/xgrammar/compiled.h"

namespace deepinfer::grammar {

struct Matcher::Library {
  xgrammar::GrammarMatcher matcher;
};

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, Trigger trigger)
    : grammar_(std::move(grammar)),
      trigger_(std::move(trigger)),
      library_(new Library{xgrammar::GrammarMatcher(grammar_->compiled().grammar)}) {
  if (trigger_.size() > 0) state_.phase = Phase::kFree;
}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

// Runs a call of the library: its exceptions and its time become the request's error.
template <typename F>
auto Matcher::guarded(F&& f) -> Result<decltype(f())> {
  auto begin = std::chrono::steady_clock::now();
  try {
    auto value = f();
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
    if (ms > kMaxTokenMs)
      return fail(Code::kInvalid, "so_args.schema: the grammar took {} ms for one token, the limit is {}", ms,
                  kMaxTokenMs);
    return value;
  } catch (const std::exception& e) {
    return fail(Code::kInternal, "the grammar failed: {}", e.what());
  }
}

Result<void> Matcher::accept_prefix(const std::string& text) {
  if (text.empty()) return {};
  DI_TRY(bool is_allowed, guarded([&] { return library_->matcher.AcceptString(text); }));
  if (!is_allowed) return fail(Code::kInvalid, "so_args.prefix: the grammar does not allow this text");
  return {};
}

Result<bool> Matcher::step(int32_t token, State& next) {
  switch (state_.phase) {
    case Phase::kFree:
      next.matched = trigger_.advance(state_.matched, token);
      if (next.matched == trigger_.size()) {
        next.phase = Phase::kConstrained;
      } else if (trigger_.is_bound(token)) {
        next.phase = Phase::kForced;
      }
      return true;
    case Phase::kForced:
      if (token != trigger_.token(state_.matched)) return false;
      if (++next.matched == trigger_.size()) next.phase = Phase::kConstrained;
      return true;
    case Phase::kConstrained: {
      DI_TRY(bool is_allowed, guarded([&] { return library_->matcher.AcceptToken(token); }));
      if (!is_allowed) return false;
      if (library_->matcher.IsTerminated()) next.phase = Phase::kEnded;
      return true;
    }
    case Phase::kEnded:
      return true;
  }
  return false;
}

Result<bool> Matcher::accept(int32_t token) {
  State next = state_;
  DI_TRY(bool is_allowed, step(token, next));
  if (!is_allowed) return false;
  before_.push_back(state_);
  state_ = next;
  return true;
}

void Matcher::rollback(int num_tokens) {
  DI_CHECK(num_tokens <= static_cast<int>(before_.size()), "{} of {} tokens taken back", num_tokens, before_.size());
  int in_grammar = 0;
  for (int i = 0; i < num_tokens; ++i) {
    state_ = before_.back();
    before_.pop_back();
    in_grammar += state_.phase == Phase::kConstrained;
  }
  if (in_grammar > 0) library_->matcher.Rollback(in_grammar);
}

Result<bool> Matcher::fill(uint32_t* mask) {
  if (state_.phase == Phase::kFree || state_.phase == Phase::kEnded) return false;
  auto words = static_cast<int64_t>(num_mask_words());
  if (state_.phase == Phase::kForced) {
    std::fill_n(mask, words, 0u);
    int32_t token = trigger_.token(state_.matched);
    mask[token / 32] |= 1u << (token % 32);
    return true;
  }
  DLTensor view{.data = mask,
                .device = {kDLCPU, 0},
                .ndim = 1,
                .dtype = xgrammar::GetBitmaskDLType(),
                .shape = &words,
                .strides = nullptr,
                .byte_offset = 0};
  return guarded([&] { return library_->matcher.FillNextTokenBitmask(&view); });
}

std::vector<int32_t> Matcher::likely_next(int limit) {
  std::vector<int32_t> tokens;
  if (state_.phase == Phase::kForced) {
    for (int i = state_.matched; i < trigger_.size(); ++i) tokens.push_back(trigger_.token(i));
  } else if (state_.phase == Phase::kConstrained) {
    tokens = guarded([&] { return library_->matcher.FindJumpForwardTokens(); }).value_or(std::vector<int32_t>());
  }
  if (static_cast<int>(tokens.size()) > limit) tokens.resize(static_cast<std::size_t>(limit));
  return tokens;
}

bool Matcher::can_end() const {
  return state_.phase == Phase::kFree || state_.phase == Phase::kEnded ||
         (state_.phase == Phase::kConstrained && library_->matcher.IsCompleted());
}

}  // namespace deepinfer::grammar
