// The reference backend: every operation in the order of the specification, row by row, nothing fused.
//
//   Activations are F32. Long sums run in double (ref/dot.h) and are rounded once to fp32; everything else is fp32 in
//   the order of the formulas. After that, r() rounds to bf16 under vendor and fast, and does nothing under fp32 and
//   qat. Threads share rows or output columns; every value is computed by one thread from its own inputs.
//
// Scratch lives in local vectors: of the boundary's contract the oracle drops "allocates nothing" and needs no
// workspace.
#pragma once

#include <vector>

#include "device/cpu/cpu_stream.h"
#include "kernels/ops.h"

namespace deepinfer::kernels::ref {

// An owned F32 matrix.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;

  Matrix(int64_t num_rows, int64_t num_cols)
      : rows(num_rows), cols(num_cols), values(static_cast<size_t>(num_rows * num_cols)) {}
  float* row(int64_t r) { return values.data() + r * cols; }
  TensorView view() { return TensorView::make(values.data(), DType::kF32, rows, cols); }
};

class RefOps : public Ops {
 public:
  explicit RefOps(Numerics numerics) : numerics_(numerics) {}

  Numerics numerics() const override { return numerics_; }
  DType activation_dtype() const override { return DType::kF32; }
  std::string description() const override { return fmt::format("ref (scalar), {}", numerics_name(numerics_)); }
  int64_t workspace_bytes(const WorkspaceShape&) const override { return 0; }
  void set_workspace(Workspace) override {}
  void prefetch(Stream&, const Weight&) override {}

  void embed(Stream& stream, const EmbedParams& p) override;
  void mhc(Stream& stream, const MhcParams& p) override;
  void linear(Stream& stream, const LinearParams& p) override;
  void grouped_linear(Stream& stream, const GroupedLinearParams& p) override;
  void rms_norm(Stream& stream, const RmsNormParams& p) override;
  void rope(Stream& stream, const RopeParams& p) override;
  void window_keys(Stream& stream, const WindowKeyParams& p) override;
  void window_store(Stream& stream, const WindowStoreParams& p) override;
  void pool(Stream& stream, const PoolParams& p) override;
  void global_write(Stream& stream, const GlobalWriteParams& p) override;
  void select(Stream& stream, const SelectParams& p) override;
  void attention(Stream& stream, const AttentionParams& p) override;
  void route(Stream& stream, const RouteParams& p) override;
  void moe(Stream& stream, const MoeParams& p) override;
  void combine(Stream& stream, const CombineParams& p) override;
  void swiglu(Stream& stream, const SwigluParams& p) override;
  void engram_gather(Stream& stream, const EngramGatherParams& p) override;
  void engram_gate(Stream& stream, const EngramGateParams& p) override;
  void stream_mean(Stream& stream, const StreamMeanParams& p) override;
  void gather_rows(Stream& stream, const GatherRowsParams& p) override;

 private:
  bool rounds_activations() const { return numerics_ == Numerics::kVendor || numerics_ == Numerics::kFast; }
  float r(float v) const { return rounds_activations() ? round_bf16(v) : v; }

  // y = r(gain * x / sqrt(mean(x^2) + eps)); y may be x.
  void norm_row(const float* x, const bf16* gain, int64_t n, float eps, float* y) const;
  // Turns the last 2 pairs channels of x as adjacent pairs, then r() on all of x; inverse: by the negative angle.
  void rotate_row(float* x, int64_t n, const float* cos, const float* sin, int64_t pairs, bool inverse = false) const;
  float swiglu_value(float gate, float up, float limit) const;
  // x rounded to e4m3 in groups of 32 where the numerics ask for it.
  Matrix act_input(ThreadPool& pool, const TensorView& x) const;
  // One expert or the shared one on all rows of x, which act_input has seen; weights: one factor a row or nullptr.
  Matrix expert(ThreadPool& pool, const ExpertWeights& w, const TensorView& x, const float* weights, float limit) const;

  Numerics numerics_;
};

}  // namespace deepinfer::kernels::ref
