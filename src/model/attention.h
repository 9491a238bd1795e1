// Attention of one layer: queries and window keys from x, the chosen compressed entries, the grouped output projection
// (model.md 3.3, 3.5).
#pragma once

#include "model/context.h"
#include "model/weights_map.h"

namespace deepinfer::model {

enum class AttentionKind {
  kBackbone,    // the rows' keys enter the layer's window
  kDraftBlock,  // rows of a run see each other and the committed window; their keys are thrown away
};

// s.y = attention(s.x) for `rows`. `layer`: id, or num_hidden_layers + draft stage. s.chosen must hold the selection of
// the layer's index source (made by select).
void attention(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, int layer,
               AttentionKind kind);

// Only the window keys of `rows` from normed inputs x (committed draft features; rows of the last layer that nobody
// asks anything), into the window of `layer`.
void store_window_keys(const Context& ctx, const BlockWeights& w, Scratch& s, const RowSet& rows, const TensorView& x,
                       int layer);

}  // namespace deepinfer::model
