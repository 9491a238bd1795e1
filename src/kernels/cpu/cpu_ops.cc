// The CPU backend: an instruction set's table behind the device boundary.
//
// It has one numerics, `fast`: activations are F32, nothing is rounded between operations, FP4 weights meet int8 and
// FP8 weights int16 activations (body/input.h). It is batch invariant: every body states its order of additions. The
// numerics that follow a definition rounding by rounding (fp32, qat, vendor) are the reference backend's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/cpu/features.h"

namespace deepinfer::kernels {
namespace cpu {
namespace {

class CpuOps final : public Ops {
 public:
  explicit CpuOps(const KernelTable& table) : table_(table) {}

  Numerics numerics() const override { return Numerics::kFast; }
  DType activation_dtype() const override { return DType::kF32; }
  std::string description() const override { return fmt::format("cpu ({}), fast", table_.name); }

  int64_t workspace_bytes(const WorkspaceShape& s) const override {
    return std::max({input_scratch_bytes(s.rows, s.max_cols), moe_scratch_bytes(s), mhc_scratch_bytes(s),
                     select_scratch_bytes(s), attention_scratch_bytes(s)}) +
           kScratchAlign;
  }
  void set_workspace(Workspace workspace) override {
    const uintptr_t at = reinterpret_cast<uintptr_t>(workspace.data);
    const int64_t skip = static_cast<int64_t>(round_up(at, kScratchAlign) - at);
    scratch_ = workspace.data + skip;
    scratch_bytes_ = std::max<int64_t>(0, workspace.bytes - skip);
  }

  // Asks for the first lines of what comes next, as far as a second-level cache holds them.
  void prefetch(Stream&, const Weight& weight) override {
    if (weight.empty()) return;
    constexpr int64_t kBytes = 64 << 10;
    const int64_t row_bytes = weight.kind == Weight::Kind::kF32    ? 4 * weight.cols
                              : weight.kind == Weight::Kind::kBF16 ? 2 * weight.cols
                              : weight.kind == Weight::Kind::kFp4  ? weight.cols / 2
                                                                   : weight.cols;
    const char* at = static_cast<const char*>(weight.codes);
    for (int64_t b = 0; b < std::min(kBytes, weight.rows * row_bytes); b += 64) __builtin_prefetch(at + b, 0, 2);
  }

  void embed(Stream& s, const EmbedParams& p) override { table_.embed(context(s), p); }
  void mhc(Stream& s, const MhcParams& p) override {
    DI_CHECK(p.m >= 1 && p.m <= 8 && p.streams.cols % (32 * p.m) == 0, "{} streams of {} channels", p.m,
             p.streams.cols);
    table_.mhc(context(s), p);
  }
  void linear(Stream& s, const LinearParams& p) override {
    for (const LinearJob& job : p.jobs) check_product(p.x, job.weight, job.y);
    table_.linear(context(s), p);
  }
  void grouped_linear(Stream& s, const GroupedLinearParams& p) override {
    DI_CHECK(p.weight.rows % p.groups == 0 && p.x.cols == p.groups * p.weight.cols && p.weight.cols % 32 == 0,
             "{} groups of [{}, {}] on {} columns", p.groups, p.weight.rows, p.weight.cols, p.x.cols);
    table_.grouped_linear(context(s), p);
  }
  void rms_norm(Stream& s, const RmsNormParams& p) override { table_.rms_norm(context(s), p); }
  void rope(Stream& s, const RopeParams& p) override {
    context(s).pool.split(p.cos.rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        rope_angles(p.positions[t], p.freq.data(), static_cast<int64_t>(p.freq.size()), p.cos.f32(t), p.sin.f32(t));
      }
    });
  }
  void window_keys(Stream& s, const WindowKeyParams& p) override {
    check_dim(p.format, p.raw.cols);
    table_.window_keys(context(s), p);
  }
  void window_store(Stream&, const WindowStoreParams& p) override {
    const int64_t bytes = window_record_bytes(p.cache.format, p.cache.head_dim);
    for (const Run& run : p.batch->runs) {
      for (int64_t i = std::max(0, run.num_rows - p.cache.ring); i < run.num_rows; ++i) {
        std::memcpy(p.cache.record(run.slot, run.first_pos + i), p.records + (run.row_begin + i) * bytes,
                    static_cast<size_t>(bytes));
      }
    }
  }
  void pool(Stream& s, const PoolParams& p) override {
    DI_CHECK(p.ratio == 1 || p.ratio == 2, "ratio {}", p.ratio);
    check_dim(RecordFormat::kPacked, p.kv.cols);
    table_.pool(context(s), p);
  }
  void global_write(Stream& s, const GlobalWriteParams& p) override {
    check_dim(p.cache.format, p.latent.cols);
    check_dim(p.cache.format, p.key_raw.cols);
    table_.global_write(context(s), p);
  }
  void select(Stream& s, const SelectParams& p) override {
    DI_CHECK(p.heads > 0 && p.q.cols / p.heads <= 512, "{} index heads in {} columns", p.heads, p.q.cols);
    check_dim(p.cache.format, p.cache.index_dim);
    table_.select(context(s), p);
  }
  void attention(Stream& s, const AttentionParams& p) override {
    check_dim(p.window.format, p.head_dim);
    table_.attention(context(s), p);
  }
  void route(Stream& s, const RouteParams& p) override {
    DI_CHECK(p.logits.cols <= 4096 && p.top_k <= p.logits.cols, "{} of {} experts", p.top_k, p.logits.cols);
    table_.route(context(s), p);
  }
  void moe(Stream& s, const MoeParams& p) override { table_.moe(context(s), p); }
  void combine(Stream& s, const CombineParams& p) override { table_.combine(context(s), p); }
  void swiglu(Stream& s, const SwigluParams& p) override { table_.swiglu(context(s), p); }
  void engram_gather(Stream& s, const EngramGatherParams& p) override { table_.engram_gather(context(s), p); }
  void engram_gate(Stream& s, const EngramGateParams& p) override { table_.engram_gate(context(s), p); }
  void stream_mean(Stream& s, const StreamMeanParams& p) override { table_.stream_mean(context(s), p); }
  void gather_rows(Stream& s, const GatherRowsParams& p) override { table_.gather_rows(context(s), p); }

 private:
  Context context(Stream& stream) const { return {pool_of(stream), scratch_, scratch_bytes_}; }
  static void check_product(const TensorView& x, const Weight& w, const TensorView& y) {
    const bool coded = w.kind != Weight::Kind::kF32 && w.kind != Weight::Kind::kBF16;
    DI_CHECK(x.cols == w.cols && y.cols == w.rows && (!coded || w.cols % 32 == 0), "[{}, {}] = [{}, {}] times [{}, {}]",
             y.rows, y.cols, x.rows, x.cols, w.rows, w.cols);
  }
  static void check_dim(RecordFormat format, int64_t dim) {
    DI_CHECK(format == RecordFormat::kPacked && dim % 32 == 0 && dim <= 4096, "records of {} channels, packed: {}", dim,
             format == RecordFormat::kPacked);
  }

  const KernelTable& table_;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Ops> make_ops(const KernelTable& table) {
  return std::make_unique<CpuOps>(table);
}

}  // namespace cpu

std::unique_ptr<Ops> make_cpu_ops() {
  const std::vector<const cpu::KernelTable*> tables = cpu::usable_tables();
  DI_CHECK(!tables.empty(), "this processor has no AVX2 and FMA; run the reference backend");
  return cpu::make_ops(*tables.front());
}

}  // namespace deepinfer::kernels
