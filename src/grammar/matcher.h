// Where one sequence stands in its grammar.
//
//   free --trigger--> constrained --end token--> ended          free: anything; ended: anything (the caller stops)
//     \--bound token--> forced --rest of the trigger--^
//
//   mask    32 ids a word, bit 1 = allowed
//   accept  one token; rollback takes any number of them back, so drafts are accepted on trial
//
// A call that is refused or that fails leaves the matcher as it was. Errors are the request's: no token is allowed, or
// the grammar took too long for one token. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/trigger.h"

namespace deepinfer::grammar {

class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, Trigger trigger);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  // Text before the output that belongs to it. kInvalid if the grammar does not allow it.
  Result<void> accept_prefix(const std::string& text);
  // False: the grammar forbids the token.
  Result<bool> accept(int32_t token);
  void rollback(int num_tokens);

  // The tokens that may come next. False: all of them, and `mask` is untouched.
  Result<bool> fill(uint32_t* mask);
  // Tokens that the grammar's next text begins with, if there is only one such text: what a model most likely writes
  // there. At most `limit`. Nothing is accepted.
  std::vector<int32_t> likely_next(int limit);

  bool is_free() const { return state_.phase == Phase::kFree; }
  bool is_ended() const { return state_.phase == Phase::kEnded; }
  bool can_end() const;  // the answer is complete as it is
  int num_mask_words() const { return grammar_->num_mask_words(); }

 private:
  enum class Phase : uint8_t { kFree, kForced, kConstrained, kEnded };
  struct State {
    Phase phase = Phase::kConstrained;
    int matched = 0;  // of the trigger
  };
  struct Library;

  Result<bool> step(int32_t token, State& next);
  template <typename F>
  auto guarded(F&& f) -> Result<decltype(f())>;

  std::shared_ptr<const Grammar> grammar_;
  Trigger trigger_;
  std::unique_ptr<Library> library_;
  State state_;
  std::vector<State> before_;  // the state before each accepted token
};

}  // namespace deepinfer::grammar
