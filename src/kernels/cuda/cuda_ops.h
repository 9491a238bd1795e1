// The CUDA backend: one class behind the device boundary; each .cc file here checks the parameters
// of its part and hands plain ones to the launches of the kernels.
//
//   smxx/   runs on every GPU from compute capability 9.0 on
//   sm90/   Hopper's own instructions; chosen at run time, with the same results bit for bit or only where stated
//
// Activations are BF16, so every value that `vendor` marks bf16 is stored as such. Products of the coded weights expand
// both sides to BF16, which is exact, and sum in fp32 in an order that depends on the number of columns alone
// (smxx/product.cuh). `fast` differs from `vendor` in the attention only: its softmax runs with a running maximum.
//
// The workspace serves one call at a time; calls of one stream follow each other.
#pragma once

#include "kernels/ops.h"
#include "tensor/arena.h"

namespace deepinfer::kernels::cuda {

class CudaOps final : public Ops {
 public:
  explicit CudaOps(Numerics numerics);

  Numerics numerics() const override { return numerics_; }
  DType activation_dtype() const override { return DType::kBF16; }
  std::string description() const override;
  int64_t workspace_bytes(const WorkspaceShape& shape) const override;
  void set_workspace(Workspace workspace) override { workspace_ = workspace; }
  void prefetch(Stream&, const Weight&) override {}

  void embed(Stream& stream, const EmbedParams& p) override;
  void mhc(Stream& stream, const MhcParams& p) override;
  void linear(Stream& stream, const LinearParams& p) override;
  void grouped_linear(Stream& stream, const GroupedLinearParams& p) override;
  void rms_norm(Stream& stream, const RmsNormParams& p) override;
  void rope(Stream& stream, const RopeParams& p) override;
  void window_keys(Stream& stream, const WindowKeyParams& p) override;
  void norm_and_window_keys(Stream& stream, const RmsNormParams& norm, const WindowKeyParams& keys) override;
  void window_store(Stream& stream, const WindowStoreParams& p) override;
  void pool(Stream& stream, const PoolParams& p) override;
  void global_write(Stream& stream, const GlobalWriteParams& p) override;
  void select(Stream& stream, const SelectParams& p) override;
  void attention(Stream& stream, const AttentionParams& p) override;
  void route(Stream& stream, const RouteParams& p) override;
  void moe(Stream& stream, const MoeParams& p) override;
  void route_and_moe(Stream& stream, const RouteParams& choice, const MoeParams& p) override;
  void combine(Stream& stream, const CombineParams& p) override;
  void swiglu(Stream& stream, const SwigluParams& p) override;
  void engram_gather(Stream& stream, const EngramGatherParams& p) override;
  void engram_gate(Stream& stream, const EngramGateParams& p) override;
  void stream_mean(Stream& stream, const StreamMeanParams& p) override;
  void gather_rows(Stream& stream, const GatherRowsParams& p) override;

 private:
  void run_moe(Stream& stream, const RouteParams* choice, const MoeParams& p);
  Arena scratch() const { return Arena(workspace_.data, workspace_.bytes); }

  Numerics numerics_;
  Workspace workspace_;
};

// Bytes of scratch of each operation that needs some, for workspace_bytes.
int64_t linear_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t moe_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t mhc_scratch_bytes(const Ops::WorkspaceShape& shape);
int64_t select_scratch_bytes(const Ops::WorkspaceShape& shape);

}  // namespace deepinfer::kernels::cuda
