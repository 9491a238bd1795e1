// The compressed half of attention (model.md 3.4): sources extend the shared cache, index sources choose from it.
#pragma once

#include "model/context.h"
#include "model/weights_map.h"

namespace deepinfer::model {

// Extends the entries and index keys of source `layer` by the groups that `rows` complete. Reads s.x.
void compress(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer);

// Writes s.chosen (and at the candidate source s.candidates). Reads s.x and the normed query latent.
void select(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer);

}  // namespace deepinfer::model
