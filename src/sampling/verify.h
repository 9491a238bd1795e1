// Draft verification that leaves the law of the output untouched.
//
//   row j holds the logits after drafts 1 .. j; its token is draft j + 1 if accepted, else the row's own draw, and the
//   sequence's step ends there. The last row has no draft: its draw is the bonus token.
//
//   kToken   coin: accept draft x iff U < p(x) / d(x); on reject draw from max(0, p - d), and from p should that be
//   empty kBlock   the coins look at the joint ratio of the prefix: same law, never fewer accepted drafts in
//   expectation kNoise   common noise (level B): the row's token is drawn as without drafts, a draft is accepted iff it
//   is that token;
//            the output does not depend on the drafts at all, so it may be verified at any width
//   greedy requests use kNoise's rule: p is one-hot, accept iff equal
//
// p is the row's processed law, d the stored law the draft was drawn from (any law is lossless). A draft id of -1 says
// that no draft was drawn for the row: it is an ordinary row whose token ends the step. Golden tokens replace a row's
// token; the draft counts as accepted iff it equals them (spec: speculative.md 6, sampling.md 4).
//
// A row whose logits are invalid fails the request; rows after a rejection are never looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sampling/sampler.h"

namespace deepinfer::sampling {

// DeepInfer multiplies d by this in the residual; ours is exact (1). Kept as an argument so that its cases run.
inline constexpr double kExactAlpha = 1.0;

struct RowVerdict {
  bool is_accepted = false;
  int32_t token = -1;
  double accept_probability = 0.0;  // sum min(p, alpha d): the calibration label, exact, without sampling noise
};
// One row with its coin and the uniform of its residual draw. A negative draft, or one that d cannot have drawn, is
// rejected.
RowVerdict verify_row(const Distribution& p, const Distribution& d, int32_t draft, float u_accept, float u_residual,
                      double alpha = kExactAlpha);

struct Chain {
  int accepted = 0;   // drafts accepted
  int final_row = 0;  // the row whose token ends the step
  int emitted() const { return accepted + 1; }
};
// Where a step ends, given each row's coin. `forced` (or empty) are golden ids, -1 = free; `drafts` has one id a row.
Chain accepted_chain(std::span<const bool> row_accepts, std::span<const bool> has_draft,
                     std::span<const int32_t> forced, std::span<const int32_t> drafts);

enum class VerifyMode : uint8_t { kToken, kBlock, kNoise };

// Draft k (from 0) of a block whose first draft has absolute index `block.index`. Greedy laws have one id. kNoise uses
// the noise of the token's own index. kToken draws from the index's draft stream: a step that ends before a draft never
// looked at it, so the next step may use the same numbers. kBlock did look, hence its streams are keyed by the block's
// start.
int32_t draw_draft(const Distribution& law, const Stream& block, int k, VerifyMode mode);

struct VerifyRequest {
  VerifyMode mode = VerifyMode::kToken;
  const RowParams* params = nullptr;
  TokenCounts* counts = nullptr;           // changed while the rows are walked, restored at the end
  std::vector<int32_t>* output = nullptr;  // the output so far; drafts are appended while walking, taken off at the end
  Stream stream;                           // index: absolute index of row 0's token
  std::span<float* const> logits;          // [q]
  int vocab = 0;
  std::span<const uint32_t* const> masks;  // [q] or empty
  std::span<const int32_t> drafts;         // [q - 1]
  std::span<const Distribution* const>
      draft_laws;                   // [q - 1] for kToken and kBlock; nullptr entry: the draft was arg-max
  std::span<const int32_t> golden;  // [q] or empty, -1 = free
};

struct VerifyResult {
  int num_accepted = 0;
  std::vector<TokenReport> tokens;         // [num_tokens], buffers are reused
  int num_tokens = 0;                      // num_accepted + 1
  std::vector<float> draft_probabilities;  // [num_accepted], d(x) of the accepted drafts; 1 for arg-max drafts
  // Labels of rows 0 .. min(num_accepted, q - 2) only: later rows were conditioned on a wrong history. In kNoise a
  // label is the outcome (0 or 1), whose mean is the coupled rate.
  std::vector<float> labels;
};

struct VerifyWorkspace {
  Workspace row;
  std::vector<Distribution> laws;  // kBlock: one a row
  Distribution one_hot;
};

Result<void> verify(const VerifyRequest& request, VerifyWorkspace& ws, VerifyResult* result);

}  // namespace deepinfer::sampling
