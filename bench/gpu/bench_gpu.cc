// The kernels of the CUDA backend at the released widths, against the machine's limits.
//
//   bench_gpu [FILTER]          cases whose name holds FILTER, or begins with it as printed. Each line: time, bytes
//   over time with its share of the measured copy bandwidth, flops over
//                               time with its share of the BF16 peak
//
// Every case is recorded as a graph of several calls over different weights, together larger than the second-level
// cache, and repeated; the median of the repeats counts. Weights are random bytes with scales around 2^-8. The BF16
// peak is that of cuBLAS at 8192 cubed on an H200 (720 - 788 TFLOP/s measured); the copy bandwidth is measured here.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "base/check.h"
#include "base/math.h"
#include "device/device.h"
#include "kernels/ops.h"

namespace deepinfer {
namespace {

using kernels::Batch;
using kernels::ExpertWeights;
using kernels::Ops;
using kernels::Run;
using kernels::Weight;

constexpr double kBf16Peak = 788e12;
constexpr int64_t kFlushBytes = int64_t{160} << 20;  // more than twice the second-level cache

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  Bench(Device& device, const std::string& filter) : device_(device), filter_(filter) {
    stream_ = device.create_stream(2);
    ops_ = kernels::make_cuda_ops(kernels::Numerics::kFast);
    const int64_t bytes = ops_->workspace_bytes({.rows = 4096,
                                                 .max_cols = 15360,
                                                 .max_positions = 1 << 20,
                                                 .heads = 64,
                                                 .head_dim = 512,
                                                 .index_heads = 32,
                                                 .index_dim = 128,
                                                 .hidden = 5120,
                                                 .expert_width = 2304,
                                                 .experts = 384,
                                                 .experts_per_token = 6});
    workspace_ = allocate(bytes);
    ops_->set_workspace({static_cast<std::byte*>(workspace_.data()), bytes});
    std::vector<uint32_t> words(1 << 22);
    std::minstd_rand rng(7);
    for (uint32_t& w : words) w = static_cast<uint32_t>(rng()) << 9 ^ static_cast<uint32_t>(rng());
    noise_ = allocate(static_cast<int64_t>(words.size() * 4));
    stream_->copy(noise_.data(), words.data(), noise_.bytes());
    stream_->synchronize();
  }

  Ops& ops() { return *ops_; }
  Stream& stream() { return *stream_; }
  bool wants(const std::string& name) const { return filter_.empty() || name.find(filter_) != std::string::npos; }

  // Whether a case whose name begins like this may be wanted.
  bool might_want(const std::string& begin) const {
    const size_t n = std::min(begin.size(), filter_.size());
    return wants(begin) || filter_.compare(0, n, begin, 0, n) == 0;
  }

  DeviceBuffer allocate(int64_t bytes) {
    auto buffer = device_.allocate(bytes);
    DI_CHECK(buffer.has_value(), "{}", buffer.error().message);
    return std::move(*buffer);
  }
  // Random bytes.
  void fill(void* to, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += noise_.bytes())
      stream_->copy(static_cast<std::byte*>(to) + at, noise_.data(), std::min(noise_.bytes(), bytes - at));
  }
  TensorView floats(DType dtype, int64_t rows, int64_t cols, float scale = 1) {
    buffers_.push_back(allocate(rows * cols * dtype_bytes(dtype)));
    std::vector<std::byte> host(static_cast<size_t>(buffers_.back().bytes()));
    std::minstd_rand rng(5);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float v = scale * (static_cast<float>(rng() % 2001) - 1000) / 500;
      if (dtype == DType::kBF16) reinterpret_cast<bf16*>(host.data())[i] = to_bf16(v);
      if (dtype == DType::kF32) reinterpret_cast<float*>(host.data())[i] = v;
    }
    stream_->copy(buffers_.back().data(), host.data(), buffers_.back().bytes());
    return TensorView::make(buffers_.back().data(), dtype, rows, cols);
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    buffers_.push_back(allocate(static_cast<int64_t>(values.size() * sizeof(T))));
    stream_->copy(buffers_.back().data(), values.data(), buffers_.back().bytes());
    stream_->synchronize();
    return static_cast<T*>(buffers_.back().data());
  }
  std::byte* bytes(int64_t count) {
    buffers_.push_back(allocate(count));
    fill(buffers_.back().data(), count);
    return static_cast<std::byte*>(buffers_.back().data());
  }
  static int64_t weight_bytes(Weight::Kind kind, int64_t rows, int64_t cols) {
    return kind == Weight::Kind::kBF16  ? rows * cols * 2
           : kind == Weight::Kind::kFp8 ? rows * cols + ceil_div(rows, 32) * (cols / 32)
                                        : rows * cols / 2 + rows * (cols / 32);
  }
  Weight weight(Weight::Kind kind, int64_t rows, int64_t cols) {
    Weight w{.kind = kind, .rows = rows, .cols = cols};
    const int64_t code_bytes = kind == Weight::Kind::kBF16  ? rows * cols * 2
                               : kind == Weight::Kind::kFp8 ? rows * cols
                                                            : rows * cols / 2;
    w.codes = bytes(code_bytes);
    if (kind == Weight::Kind::kBF16) {  // exponents near 1, so that nothing overflows
      stream_->fill(const_cast<void*>(w.codes), 0x3c, code_bytes);
      return w;
    }
    const int64_t scales = weight_bytes(kind, rows, cols) - code_bytes;
    std::byte* s = bytes(scales);
    stream_->fill(s, 119, scales);
    w.scales = reinterpret_cast<const uint8_t*>(s);
    return w;
  }
  void clear() {
    stream_->synchronize();
    buffers_.clear();
  }

  // Median time of one of the `calls` that f(i) makes, in microseconds.
  double time(int calls, const std::function<void(int)>& f) {
    for (int i = 0; i < calls; ++i) f(i);
    stream_->synchronize();
    stream_->begin_capture();
    for (int i = 0; i < calls; ++i) f(i);
    const auto graph = stream_->end_capture();
    std::vector<double> times;
    graph->launch(*stream_);
    stream_->synchronize();
    const double start = now_us();
    for (int repeat = 0; repeat < 15 && (repeat < 3 || now_us() - start < 2e5); ++repeat) {
      const double begin = now_us();
      graph->launch(*stream_);
      stream_->synchronize();
      times.push_back((now_us() - begin) / calls);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }
  void report(const std::string& name, double us, double moved, double flops) {
    std::printf("%-44s %10.1f us", name.c_str(), us);
    if (moved > 0)
      std::printf("  %7.3f TB/s %5.1f %% of copy", moved / us * 1e-6, 100 * moved / us * 1e6 / copy_bandwidth);
    if (flops > 0)
      std::printf("  %7.1f TFLOP/s %5.1f %% of BF16", flops / us * 1e-6, 100 * flops / us * 1e6 / kBf16Peak);
    std::printf("\n");
    std::fflush(stdout);
  }

  double copy_bandwidth = 4.25e12;

 private:
  Device& device_;
  std::string filter_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  DeviceBuffer workspace_, noise_;
  std::vector<DeviceBuffer> buffers_;
};

// Calls over different weights that together are larger than the cache; at least 4, so that launches overlap.
int calls_for(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>(ceil_div(kFlushBytes, bytes), 4, 64));
}

void bench_copy(Bench& b) {
  const int64_t bytes = int64_t{4} << 30;
  {
    const DeviceBuffer from = b.allocate(bytes), to = b.allocate(bytes);
    b.fill(from.data(), bytes);
    // Not from a graph: recorded copies run on a copy engine, which is slower.
    auto copy = [&] { b.stream().copy(to.data(), from.data(), bytes); };
    copy();
    b.stream().synchronize();
    const double begin = now_us();
    for (int i = 0; i < 8; ++i) copy();
    b.stream().synchronize();
    const double us = (now_us() - begin) / 8;
    b.copy_bandwidth = 2 * static_cast<double>(bytes) / us * 1e6;
    b.report("copy of 4 GiB (read + written)", us, 2 * static_cast<double>(bytes), 0);
  }
}

void bench_linear(Bench& b) {
  struct Case {
    const char* name;
    Weight::Kind kind;
    int64_t rows, cols;
  };
  for (const Case& c :
       {Case{"wq_b", Weight::Kind::kFp8, 32768, 1280}, Case{"wo_b", Weight::Kind::kFp8, 5120, 8192},
        Case{"wq_a", Weight::Kind::kFp8, 1280, 5120}, Case{"shared_w13", Weight::Kind::kFp8, 4608, 5120},
        Case{"router_bf16", Weight::Kind::kBF16, 384, 5120}, Case{"head_bf16", Weight::Kind::kBF16, 129280, 5120}}) {
    const int64_t bytes = Bench::weight_bytes(c.kind, c.rows, c.cols);
    if (!b.might_want(fmt::format("linear {} [{}, {}] x ", c.name, c.rows, c.cols))) continue;
    const int calls = calls_for(bytes);
    std::vector<Weight> weights;
    for (int i = 0; i < calls; ++i) weights.push_back(b.weight(c.kind, c.rows, c.cols));
    for (int64_t tokens : {1, 4, 16, 64, 256, 1024, 4096}) {
      const std::string name = fmt::format("linear {} [{}, {}] x {}", c.name, c.rows, c.cols, tokens);
      if ((tokens > 64 && c.rows > 100000) || !b.wants(name)) continue;
      const TensorView x = b.floats(DType::kBF16, tokens, c.cols), y = b.floats(DType::kBF16, tokens, c.rows);
      const double us = b.time(calls, [&](int i) {
        const kernels::LinearJob job{.weight = weights[static_cast<size_t>(i)], .y = y};
        b.ops().linear(b.stream(), {.x = x, .jobs = {&job, 1}});
      });
      b.report(name, us, static_cast<double>(bytes), 2.0 * static_cast<double>(tokens * c.rows * c.cols));
    }
    b.clear();
  }
}

void bench_moe(Bench& b) {
  const int64_t d = 5120, width = 2304;
  for (int num_experts : {96, 384}) {
    if (!b.might_want(fmt::format("moe {} experts", num_experts))) continue;
    std::vector<ExpertWeights> experts;
    for (int e = 0; e < num_experts; ++e)
      experts.push_back({b.weight(Weight::Kind::kFp4, width, d), b.weight(Weight::Kind::kFp4, d, width),
                         b.weight(Weight::Kind::kFp4, width, d)});
    const ExpertWeights shared{b.weight(Weight::Kind::kFp8, width, d), b.weight(Weight::Kind::kFp8, d, width),
                               b.weight(Weight::Kind::kFp8, width, d)};
    const ExpertWeights* device_experts = b.put(experts);
    const double expert_bytes = 3 * static_cast<double>(Bench::weight_bytes(Weight::Kind::kFp4, width, d));
    const double shared_bytes = 3 * static_cast<double>(Bench::weight_bytes(Weight::Kind::kFp8, width, d));
    for (int64_t tokens : {1, 2, 4, 8, 16, 64, 256, 1024, 4096}) {
      if (!b.wants(fmt::format("moe {} experts x {}", num_experts, tokens))) continue;
      std::mt19937 rng(static_cast<uint32_t>(tokens));
      const TensorView x = b.floats(DType::kBF16, tokens, d), z = b.floats(DType::kBF16, tokens, d);
      const TensorView weights = b.floats(DType::kF32, tokens, 6);
      const int calls = tokens <= 16 ? 16 : 4;
      std::vector<int32_t*> ids;
      double touched = 0;
      for (int i = 0; i < calls; ++i) {
        std::vector<int32_t> all(static_cast<size_t>(num_experts)), chosen;
        std::vector<bool> used(static_cast<size_t>(num_experts));
        std::iota(all.begin(), all.end(), 0);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int k = 0; k < 6; ++k)
            std::swap(all[static_cast<size_t>(k)], all[k + rng() % static_cast<unsigned>(num_experts - k)]);
          std::vector<int32_t> row(all.begin(), all.begin() + 6);
          std::sort(row.begin(), row.end());
          for (int32_t e : row) used[static_cast<size_t>(e)] = true;
          chosen.insert(chosen.end(), row.begin(), row.end());
        }
        ids.push_back(b.put(chosen));
        touched += static_cast<double>(std::count(used.begin(), used.end(), true)) / calls;
      }
      for (bool with_shared : {false, true}) {
        const double us = b.time(calls, [&](int i) {
          b.ops().moe(b.stream(), {.x = x,
                                   .ids = TensorView::make(ids[static_cast<size_t>(i)], DType::kI32, tokens, 6),
                                   .weights = weights,
                                   .experts = experts,
                                   .device_experts = device_experts,
                                   .shared = with_shared ? &shared : nullptr,
                                   .limit = 10,
                                   .z = z});
        });
        const double work = 6.0 * static_cast<double>(tokens * width * d) * (6 + with_shared);
        b.report(fmt::format("moe {} experts{} x {}", num_experts, with_shared ? " + shared" : "", tokens), us,
                 touched * expert_bytes + (with_shared ? shared_bytes : 0), work);
      }
    }
    b.clear();
  }
}

// `sequences` of `rows` rows each at the end of a context of a ratio-1 cache.
struct Sequences {
  std::vector<Run> runs;
  Batch batch;
  kernels::WindowCache window;
  kernels::GlobalCache global;
  kernels::Rope rope;
  std::byte* records;

  Sequences(Bench& b, int sequences, int rows, int64_t context) {
    const int64_t blocks = ceil_div(context, 128);
    std::vector<int64_t> positions;
    std::vector<int32_t> run_of_row;
    for (int s = 0; s < sequences; ++s) {
      std::vector<int32_t> table;
      for (int64_t i = 0; i < blocks; ++i) table.push_back(static_cast<int32_t>(s * blocks + i));
      runs.push_back({.row_begin = s * rows,
                      .num_rows = rows,
                      .first_pos = context - rows,
                      .slot = s,
                      .block_table = b.put(table)});
      for (int i = 0; i < rows; ++i) positions.push_back(context - rows + i), run_of_row.push_back(s);
    }
    batch = {.num_rows = sequences * rows,
             .runs = runs,
             .positions = b.put(positions),
             .run_of_row = b.put(run_of_row),
             .device_runs = b.put(runs)};
    auto records_of = [&](int64_t count, int64_t bytes, int64_t code_bytes, int scale) {
      std::vector<uint8_t> host(static_cast<size_t>(count * bytes));
      std::minstd_rand rng(3);
      for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<int64_t>(i) % bytes < code_bytes ? static_cast<uint8_t>(rng() % 0x70)
                                                               : static_cast<uint8_t>(scale);
      return reinterpret_cast<std::byte*>(b.put(host));
    };
    window = {.data = records_of(int64_t{sequences} * 134, 528, 512, 118), .ring = 134, .window = 128, .head_dim = 512};
    records = records_of(int64_t{sequences} * rows, 528, 512, 118);
    global = {
        .main_block_bytes = 128 * 288, .index_block_bytes = 128 * 68, .ratio = 1, .head_dim = 512, .index_dim = 128};
    global.main = b.bytes(sequences * blocks * global.main_block_bytes);
    b.stream().fill(global.main, 0x31, sequences * blocks * global.main_block_bytes);
    global.index = b.bytes(sequences * blocks * global.index_block_bytes);
    rope = {b.floats(DType::kF32, sequences * rows, 32), b.floats(DType::kF32, sequences * rows, 32)};
  }
};

void bench_attention(Bench& b) {
  for (auto [sequences, rows] :
       {std::pair{1, 1}, {1, 6}, {8, 1}, {8, 6}, {64, 1}, {64, 6}, {256, 1}, {256, 6}, {1, 1024}}) {
    const std::string name = fmt::format("attention {} x {} rows, 640 keys", sequences, rows);
    if (!b.wants(name)) continue;
    const int64_t context = 16384;
    Sequences s(b, sequences, rows, context);
    const int64_t n = int64_t{sequences} * rows;
    std::vector<int32_t> chosen;
    std::mt19937 rng(1);
    for (int64_t t = 0; t < n; ++t) {
      for (int i = 0; i < 512; ++i) chosen.push_back(static_cast<int32_t>(i * 30 + rng() % 30));
    }
    const TensorView ids = TensorView::make(b.put(chosen), DType::kI32, n, 512);
    const TensorView q = b.floats(DType::kBF16, n, 64 * 512), out = b.floats(DType::kBF16, n, 64 * 512);
    const TensorView sink = b.floats(DType::kF32, 1, 64);
    const double us = b.time(4, [&](int) {
      b.ops().attention(b.stream(), {.batch = &s.batch,
                                     .q = q,
                                     .rope = s.rope,
                                     .records = s.records,
                                     .window = s.window,
                                     .chosen = ids,
                                     .global = s.global,
                                     .sink = static_cast<const float*>(sink.data),
                                     .heads = 64,
                                     .head_dim = 512,
                                     .scale = 1 / std::sqrt(512.f),
                                     .out = out});
    });
    b.report(name, us, static_cast<double>(n) * (128 * 528 + 512 * 288), 4.0 * 64 * 512 * 640 * static_cast<double>(n));
    b.clear();
  }
}

void bench_select(Bench& b) {
  for (auto [sequences, rows, context] :
       {std::tuple{1, 1, 32768}, {1, 1, 262144}, {1, 6, 262144}, {8, 1, 262144}, {1, 1, 1048576}}) {
    const std::string name = fmt::format("select {} x {} rows, {} entries", sequences, rows, context);
    if (!b.wants(name)) continue;
    Sequences s(b, sequences, rows, context);
    const int64_t n = int64_t{sequences} * rows;
    const TensorView q = b.floats(DType::kBF16, n, 4096), w = b.floats(DType::kBF16, n, 32);
    const TensorView chosen =
        TensorView::make(b.put(std::vector<int32_t>(static_cast<size_t>(n * 512))), DType::kI32, n, 512);
    const double us = b.time(4, [&](int) {
      b.ops().select(b.stream(), {.batch = &s.batch,
                                  .q = q,
                                  .head_weights = w,
                                  .heads = 32,
                                  .head_scale = 1.f / 64,
                                  .rope = s.rope,
                                  .cache = s.global,
                                  .top_k = 512,
                                  .chosen = chosen});
    });
    b.report(name, us, static_cast<double>(sequences) * context * 68,
             2.0 * 32 * 128 * static_cast<double>(n) * context);
    b.clear();
  }
}

void bench_rows(Bench& b) {
  const int64_t d = 5120;
  for (int64_t n : {1, 8, 64, 512, 4096}) {
    if (b.wants("mhc")) {
      const int calls = n >= 512 ? 2 : 8;
      std::vector<TensorView> streams, fn;
      for (int i = 0; i < calls; ++i) {
        streams.push_back(b.floats(DType::kBF16, n, 4 * d));
        fn.push_back(b.floats(DType::kF32, 24, 4 * d, 0.01f));
      }
      const TensorView y = b.floats(DType::kBF16, n, d), x = b.floats(DType::kBF16, n, d),
                       post = b.floats(DType::kF32, n, 4), comb = b.floats(DType::kF32, n, 16, 0.1f),
                       pre = b.floats(DType::kF32, n, 4), pre_out = b.floats(DType::kF32, n, 4),
                       base = b.floats(DType::kF32, 1, 24), gain = b.floats(DType::kBF16, 1, d);
      const double us = b.time(calls, [&](int i) {
        b.ops().mhc(b.stream(), {.streams = streams[static_cast<size_t>(i)],
                                 .y = y,
                                 .post_in = post,
                                 .comb_in = comb,
                                 .fn = static_cast<const float*>(fn[static_cast<size_t>(i)].data),
                                 .base = static_cast<const float*>(base.data),
                                 .scale = static_cast<const float*>(base.data),
                                 .pre_in = pre,
                                 .pre_out = pre_out,
                                 .post_out = post,
                                 .comb_out = comb,
                                 .gain = static_cast<const bf16*>(gain.data),
                                 .x = x,
                                 .m = 4,
                                 .sinkhorn_iters = 20,
                                 .rms_eps = 1e-20f,
                                 .hc_eps = 1e-6f});
      });
      b.report(fmt::format("mhc site x {}", n), us, static_cast<double>(n) * d * 2 * (8 + 2) + 24.0 * 4 * d * 4, 0);
      b.clear();
    }
    if (b.wants("norm")) {
      const TensorView x = b.floats(DType::kBF16, n, d), y = b.floats(DType::kBF16, n, d),
                       gain = b.floats(DType::kBF16, 1, d);
      const double us = b.time(16, [&](int) {
        b.ops().rms_norm(b.stream(), {.x = x, .y = y, .gain = static_cast<const bf16*>(gain.data), .eps = 1e-20f});
      });
      b.report(fmt::format("norm x {}", n), us, static_cast<double>(n) * d * 4, 0);
      b.clear();
    }
    if (b.wants("route")) {
      const TensorView logits = b.floats(DType::kF32, n, 384), bias = b.floats(DType::kF32, 1, 384, 0.1f),
                       w = b.floats(DType::kF32, n, 6);
      const TensorView ids =
          TensorView::make(b.put(std::vector<int32_t>(static_cast<size_t>(n * 6))), DType::kI32, n, 6);
      const double us = b.time(16, [&](int) {
        b.ops().route(b.stream(), {.logits = logits,
                                   .bias = static_cast<const float*>(bias.data),
                                   .top_k = 6,
                                   .scale = 1.5f,
                                   .ids = ids,
                                   .weights = w});
      });
      b.report(fmt::format("route 384 x {}", n), us, static_cast<double>(n) * 384 * 4, 0);
      b.clear();
    }
  }
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  using namespace deepinfer;
  auto device = make_cuda_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 2;
  }
  std::printf("%s\n", (*device)->description().c_str());
  Bench bench(**device, argc > 1 ? argv[1] : "");
  bench_copy(bench);
  bench_rows(bench);
  bench_linear(bench);
  bench_moe(bench);
  bench_attention(bench);
  bench_select(bench);
}
