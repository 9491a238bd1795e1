// Router, routed experts and the shared expert (model.md 3.6).
#pragma once

#include "model/context.h"
#include "model/weights_map.h"

namespace deepinfer::model {

// s.y = experts(s.x). `layer`: id, or num_hidden_layers + draft stage.
void experts(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer);

}  // namespace deepinfer::model
