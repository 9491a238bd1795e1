#include "model/block.h"

#include "model/indexer.h"
#include "model/moe.h"

namespace deepinfer::model {

void run_block(const Context& ctx, const BlockWeights& w, Scratch& s, Streams& streams, const RowSet& rows, int layer,
               AttentionKind kind, bool keys_are_written) {
  const TensorView x = head_rows(s.x, rows.num_rows()), y = head_rows(s.y, rows.num_rows());
  ctx.ops().prefetch(ctx.stream(), w.wq_a);
  ctx.ops().prefetch(ctx.stream(), w.wkv);
  streams.enter(ctx, w.attn_site, w.attn_norm, x);
  if (!w.compressor_kv.empty() && !keys_are_written) compress(ctx, w, s, rows, layer);
  attention(ctx, w, s, rows, layer, kind);
  streams.leave(y);
  streams.enter(ctx, w.ffn_site, w.ffn_norm, x);
  experts(ctx, w, s, rows, layer);
  streams.leave(y);
}

}  // namespace deepinfer::model
