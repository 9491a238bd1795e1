// The grammar of one running sequence: masks for the row after its output and for the rows after each draft.
//
//   matcher = output + drafts.   A draft is accepted when it is proposed, under the mask of its row; the same masks
//   then serve to verify it, so each is made once.
//
// Used by one thread at a time; different sequences by different threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/matcher.h"

namespace deepinfer::engine {

// What the sequence has to follow; shared by the choices of a request.
struct GrammarSpec {
  std::shared_ptr<const grammar::Grammar> grammar;  // owners: the compiler's cache and the sequences that follow it
  grammar::Trigger trigger;
  std::string prefix;
};

class SequenceGrammar {
 public:
  explicit SequenceGrammar(const GrammarSpec& spec) : matcher_(spec.grammar, spec.trigger) {}

  // The prefix and the output so far (a sequence that resumes). kInvalid: the grammar does not allow them.
  Result<void> start(const GrammarSpec& spec, std::span<const int32_t> output);

  // The mask of the row after the first `row` drafts; nullptr: every token. Rows are asked for in order.
  Result<const uint32_t*> mask(int row);
  // False: the grammar forbids it, or nothing may follow: no more drafts.
  Result<bool> accept_draft(int32_t token);
  // What probably follows the drafts, where the text is not free; empty otherwise. Call mask() of this row before.
  std::vector<int32_t> likely_next(int limit);
  // The token that has to follow the output, if the answer is complete and nothing else may come. No drafts are
  // pending.
  std::optional<int32_t> end_token();
  // `tokens` follow the output; drafts are kept as far as they agree.
  Result<void> commit(std::span<const int32_t> tokens);

 private:
  static constexpr int kFewTokens = 64;  // that a mask leaves: the text behind it may be forced

  std::span<uint32_t> mask_row(int row);

  grammar::Matcher matcher_;
  std::vector<int32_t> drafts_;
  std::vector<uint32_t> masks_;      // [rows, words]
  std::vector<bool> is_restricted_;  // of each row made so far
};

}  // namespace deepinfer::engine
