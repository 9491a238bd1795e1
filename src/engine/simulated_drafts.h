// Drafts of a quality that is given instead of being the model's: what the engine does with real drafts can be measured
// on weights that were generated.
//
//   acceptance of draft k   sigmoid(centre + spread x normal), drawn anew for every draft; the confidence head knows it
//   centre                  such that a round that verifies all drafts emits `mean_tokens`, the final token included
//
// A pure function of (seed, stream, k): the same requests meet the same luck whatever runs beside them. Tokens that are
// decided this way are no answer of the model.
#pragma once

#include <cstdint>

#include "sampling/philox.h"

namespace deepinfer::engine {

struct DraftQuality {
  double mean_tokens = 0.0;  // of a round, above 1 and below 1 + drafts
  double spread = 1.5;       // of the logits; 0: every draft alike
  uint64_t seed = 1;
};

class SimulatedDrafts {
 public:
  SimulatedDrafts(const DraftQuality& quality, int num_drafts);

  // Of draft k of the block whose first draft has the index `block.index`.
  float confidence_logit(const sampling::Stream& block, int k) const;
  double acceptance(const sampling::Stream& block, int k) const;
  bool is_accepted(const sampling::Stream& block, int k) const;

 private:
  DraftQuality quality_;
  double centre_ = 0.0;
};

}  // namespace deepinfer::engine
