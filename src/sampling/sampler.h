// One row of logits to one token: a pure function of (logits, parameters, seed, position).
//
//   logits --penalties, bias, bans--> edited --grammar mask, temperature, min-p, top-k, top-p--> Distribution --race-->
//   token
//
//   - min-p, top-k and top-p are measured on the same unfiltered softmax, in the order (logit descending, id
//   ascending);
//     each keeps a prefix of that order, the shortest wins; a token stays under top-p if the mass before it is <= p
//   - temperature below 1e-5: arg-max, lowest id on ties
//   - nothing here depends on the batch: not on the row's index, the other rows or the number of drafts
//
// `logits` is edited while a function runs and restored before it returns. A row without a usable logit is an error of
// that row alone. A Workspace belongs to one thread; after its first row of a given vocabulary nothing is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sampling/distribution.h"
#include "sampling/params.h"
#include "sampling/token_counts.h"

namespace deepinfer::sampling {

struct Row {
  float* logits = nullptr;  // [vocab]
  int vocab = 0;
  const uint32_t* mask = nullptr;  // [ceil(vocab / 32)] from the grammar, bit 1 = allowed; nullptr: all
  const RowParams* params = nullptr;
  const TokenCounts* counts = nullptr;  // needed if params->has_penalties()
  std::span<const int32_t> output;      // the output before this row (for bad words and the first-token rule)
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// What is reported of an emitted token. Log-probabilities may be -inf (a forced token outside the filter): writers of
// JSON leave such entries out.
struct TokenReport {
  int32_t token = -1;
  float raw_logprob = 0.0f;        // of the model, before everything
  float processed_logprob = 0.0f;  // of the law that was drawn from
  float smaller_mass = -1.0f;      // mass of tokens less likely, or as likely with an id not above; -1: not wanted
  std::vector<TokenLogprob> top;   // the `top_logprobs` best of the wanted kind, best first
};

struct Workspace {
  std::vector<float> block_max;
  std::vector<int32_t> ids;
  std::vector<float> logits, weights;
  std::vector<int32_t> members;
  struct Bin {
    uint64_t mass = 0;
    int64_t count = 0;
  };
  std::vector<Bin> bins;
  std::vector<Bias> saved;  // edited logits, to be restored in reverse
  Distribution law;

  void reserve(int vocab);
};

// The law of a row. Fails with kInternal if the logits hold NaN, +inf or only -inf, with kInvalid if mask and bans
// leave nothing.
Result<void> shape_row(const Row& row, Workspace& ws, Distribution* law);

// Log-probabilities of `token` as the request wants them; `law` is the row's. Reads the logits unedited.
void describe(const Row& row, const Distribution& law, int32_t token, Workspace& ws, TokenReport* report);

// Shape, draw with the shared noise, describe. `forced` >= 0 replaces the drawn token (golden tokens).
Result<void> sample_row(const Row& row, const Stream& stream, int32_t forced, Workspace& ws, TokenReport* report);

// Parameters of the draft law of a request: the same filters, the support cut to `max_support` ids so that a stored law
// is small. Any draft law is lossless; this one loses only the overlap beyond the cut.
RowParams draft_params(const RowParams& params, int max_support);

}  // namespace deepinfer::sampling
