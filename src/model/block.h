// One layer of the backbone or one draft stage: attention and experts between the mHC sites.
#pragma once

#include "model/attention.h"
#include "model/streams.h"

namespace deepinfer::model {

// `layer`: id, or num_hidden_layers + draft stage. A KV source also extends its cache unless `keys_are_written`.
void run_block(const Context& ctx, const BlockWeights& w, Scratch& s, Streams& streams, const RowSet& rows, int layer,
               AttentionKind kind, bool keys_are_written = false);

}  // namespace deepinfer::model
