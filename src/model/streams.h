// The residual streams of a row set and the mixes between sublayers (model.md 3.1, 3.2).
//
//   site i:  streams absorb the output of the sublayer before (post, comb of its own site); the site computes its
//   mixes;
//            its input is folded with the `pre` of the site before.
//   A sublayer's output stays pending in `y` until the next site, so that absorbing, mixing and folding are one pass.
#pragma once

#include "model/context.h"
#include "model/weights_map.h"

namespace deepinfer::model {

class Streams {
 public:
  void plan(Arena& arena, const ModelConfig& config, DType activation, int64_t rows);

  // Starts `rows` rows of embeddings (to be written to all()): the first site reads stream 0 alone.
  void begin(const Context& ctx, int64_t rows);
  int64_t num_rows() const { return rows_; }
  TensorView all() const { return head_rows(streams_, rows_); }
  TensorView pre() const { return head_rows(pre_[current_], rows_); }

  // The sublayer's input x [T, d]; `site` computes the mixes for its output and the fold of the next site.
  void enter(const Context& ctx, const SiteWeights& site, const bf16* gain, const TensorView& x);
  // The output of the sublayer; read by the next enter, flush or fold.
  void leave(const TensorView& y) { pending_ = y; }
  // Absorbs a pending output now.
  void flush(const Context& ctx);
  // x = RMSNorm(fold), and the fold itself if wanted, without a site of its own; absorbs a pending output.
  void fold(const Context& ctx, const bf16* gain, const TensorView& x, const TensorView& folded = {});
  // Keeps the given rows only. Nothing may be pending.
  void keep(const Context& ctx, std::span<const RowRange> ranges);

 private:
  kernels::MhcParams params(const Context& ctx);

  TensorView streams_;            // [rows, m d]
  TensorView pre_[2];             // [rows, m] F32; [current_] belongs to the next site
  TensorView post_, comb_;        // [rows, m], [rows, m m] F32, of the site entered last
  std::vector<float> first_pre_;  // (1, 0, 0, 0) for every row
  TensorView pending_;
  int64_t rows_ = 0;
  int current_ = 0;
};

}  // namespace deepinfer::model
