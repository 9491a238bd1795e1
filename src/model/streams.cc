#include "model/streams.h"

#include <utility>

namespace deepinfer::model {

void Streams::plan(Arena& arena, const ModelConfig& config, DType activation, int64_t rows) {
  const int64_t m = config.hc_mult;
  streams_ = arena.matrix(activation, rows, m * config.hidden_size);
  for (TensorView& pre : pre_) pre = arena.matrix(DType::kF32, rows, m);
  post_ = arena.matrix(DType::kF32, rows, m);
  comb_ = arena.matrix(DType::kF32, rows, m * m);
  first_pre_.assign(static_cast<size_t>(rows * m), 0.f);
  for (int64_t t = 0; t < rows; ++t) first_pre_[static_cast<size_t>(t * m)] = 1.f;
}

void Streams::begin(const Context& ctx, int64_t rows) {
  rows_ = rows;
  pending_ = {};
  ctx.stream().copy(pre().data, first_pre_.data(), rows * pre().row_bytes());
}

kernels::MhcParams Streams::params(const Context& ctx) {
  kernels::MhcParams p;
  p.streams = all();
  p.m = ctx.config.hc_mult;
  p.sinkhorn_iters = ctx.config.hc_sinkhorn_iters;
  p.rms_eps = ctx.eps();
  p.hc_eps = static_cast<float>(ctx.config.hc_eps);
  p.y = std::exchange(pending_, {});
  p.post_in = p.post_out = head_rows(post_, rows_);
  p.comb_in = p.comb_out = head_rows(comb_, rows_);
  p.pre_in = pre();
  return p;
}

void Streams::enter(const Context& ctx, const SiteWeights& site, const bf16* gain, const TensorView& x) {
  kernels::MhcParams p = params(ctx);
  p.fn = site.fn;
  p.base = site.base;
  p.scale = site.scale;
  p.pre_out = head_rows(pre_[1 - current_], rows_);
  p.gain = gain;
  p.x = x;
  ctx.ops().mhc(ctx.stream(), p);
  current_ = 1 - current_;
}

void Streams::flush(const Context& ctx) {
  if (!pending_.empty()) ctx.ops().mhc(ctx.stream(), params(ctx));
}

void Streams::fold(const Context& ctx, const bf16* gain, const TensorView& x, const TensorView& folded) {
  kernels::MhcParams p = params(ctx);
  p.gain = gain;
  p.x = x;
  p.folded = folded;
  ctx.ops().mhc(ctx.stream(), p);
}

void Streams::keep(const Context& ctx, std::span<const RowRange> ranges) {
  DI_CHECK(pending_.empty(), "rows dropped with an output pending");
  compact_rows(ctx.stream(), all(), ranges);
  compact_rows(ctx.stream(), pre(), ranges);
  rows_ = 0;
  for (const RowRange& range : ranges) rows_ += range.count;
}

}  // namespace deepinfer::model
