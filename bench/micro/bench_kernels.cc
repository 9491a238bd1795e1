// The CPU kernels against the machine's limits: bytes for what streams weights, operations for what computes.
//
//   bench_kernels [--benchmark_filter=...] [--benchmark_out=FILE --benchmark_out_format=json]
//
// Weights are spread over a buffer far larger than the caches and visited in turn, so that a decode step finds nothing
// cached. Counters: GB/s or GOP/s, `of_limit` the share of the limit that binds, cpu_share how undisturbed the reading
// was.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include <benchmark/benchmark.h>

#include "bench/roofline/roofline.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/cpu/features.h"

namespace deepinfer {
namespace {

using kernels::Weight;

// Random bytes; weights are cut from them at moving offsets.
class Pool {
 public:
  Pool(int64_t bytes, uint64_t mask, uint64_t set)
      : device_(make_cpu_device()), buffer_(std::move(*device_->allocate(bytes))) {
    uint64_t state = 1;
    uint64_t* words = static_cast<uint64_t*>(buffer_.data());
    for (int64_t i = 0; i < bytes / 8; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      words[i] = ((state ^ state >> 29) & mask) | set;
    }
    scales_.assign(size_t{64} << 20, 120);
  }
  Weight next(Weight::Kind kind, int64_t rows, int64_t cols) {
    const int64_t bytes = kind == Weight::Kind::kF32    ? rows * cols * 4
                          : kind == Weight::Kind::kBF16 ? rows * cols * 2
                          : kind == Weight::Kind::kFp4  ? rows * cols / 2
                                                        : rows * cols;
    if (at_ + bytes > buffer_.bytes()) at_ = 0;
    Weight w{kind, static_cast<const std::byte*>(buffer_.data()) + at_, scales_.data(), rows, cols};
    at_ += (bytes + 63) / 64 * 64;
    return w;
  }

 private:
  std::unique_ptr<Device> device_;
  DeviceBuffer buffer_;
  std::vector<uint8_t> scales_;
  int64_t at_ = 0;
};
// Codes without NaN, and floats of moderate size (as bf16 or as fp32).
Weight next_weight(Weight::Kind kind, int64_t rows, int64_t cols) {
  static Pool codes(int64_t{768} << 20, 0xbfbfbfbfbfbfbfbfu, 0),
      floats(int64_t{512} << 20, 0x807f807f807f807fu, 0x3f003f003f003f00u);
  return (kind == Weight::Kind::kF32 || kind == Weight::Kind::kBF16 ? floats : codes).next(kind, rows, cols);
}

struct Floats {
  std::vector<float> values;
  TensorView view;
  Floats(int64_t rows, int64_t cols) : values(static_cast<size_t>(rows * cols)) {
    std::minstd_rand rng(7);
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(rng);
    view = TensorView::make(values.data(), DType::kF32, rows, cols);
  }
};

// One backend with its stream and workspace.
struct Bench {
  CpuStream stream;
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<Device> device = make_cpu_device();
  DeviceBuffer workspace;

  explicit Bench(int threads) : stream(threads), ops(kernels::make_cpu_ops()) {
    const int64_t bytes = ops->workspace_bytes({.rows = 4096,
                                                .max_cols = 25600,
                                                .max_positions = 1 << 20,
                                                .heads = 64,
                                                .head_dim = 512,
                                                .index_heads = 32,
                                                .index_dim = 128,
                                                .attention_keys = 640,
                                                .hidden = 5120,
                                                .expert_width = 2304,
                                                .experts = 384,
                                                .experts_per_token = 6,
                                                .threads = threads});
    workspace = std::move(*device->allocate(bytes));
    ops->set_workspace({static_cast<std::byte*>(workspace.data()), bytes});
  }
};

struct Work {
  std::function<void()> run;
  const char* limit;  // read, int8, ...
  double units;       // bytes or operations of one run
};

const std::vector<bench::Limit>& limits(int threads) {
  static std::vector<bench::Limit> cached[2];
  std::vector<bench::Limit>& l = cached[threads == 1 ? 0 : 1];
  if (l.empty()) {
    ThreadPool pool(threads);
    l = bench::measure_limits(pool);
  }
  return l;
}

void measure(benchmark::State& state, Bench& bench, const Work& work) {
  const int threads = bench.stream.pool().size();
  work.run();
  std::vector<double> seconds;
  double share = 0;
  for (auto _ : state) {
    const bench::Reading r = bench::measure(bench.stream.pool(), work.run);
    state.SetIterationTime(r.seconds);
    seconds.push_back(r.seconds);
    share += r.share;
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], limit = bench::limit_of(limits(threads), work.limit);
  state.counters[std::string(work.limit) == "read" ? "GB/s" : "GOP/s"] = work.units / median * 1e-9;
  state.counters["of_limit"] = work.units / median * 1e-9 / limit;
  state.counters["cpu_share"] = share / static_cast<double>(seconds.size());
}

using Make = std::function<Work(Bench&)>;
void add(const std::string& name, const Make& make) {
  std::vector<int> counts{1};
  if (available_threads() > 1) counts.push_back(available_threads());
  for (int threads : counts) {
    benchmark::RegisterBenchmark(fmt::format("{}/threads:{}", name, threads).c_str(),
                                 [=](benchmark::State& state) {
                                   Bench bench(threads);
                                   measure(state, bench, make(bench));
                                 })
        ->UseManualTime()
        ->MinTime(0.2)
        ->Unit(benchmark::kMicrosecond);
  }
}

// y = x W^T; few rows are bound by bytes, many by operations.
Make linear(Weight::Kind kind, int64_t out, int64_t in, int64_t rows, const char* limit) {
  return [=](Bench& b) {
    auto x = std::make_shared<Floats>(rows, in), y = std::make_shared<Floats>(rows, out);
    const double bytes = static_cast<double>(out * in) * (kind == Weight::Kind::kF32    ? 4
                                                          : kind == Weight::Kind::kBF16 ? 2
                                                          : kind == Weight::Kind::kFp4  ? 0.53125
                                                                                        : 1);
    const double ops = 2.0 * static_cast<double>(out * in * rows);
    return Work{[=, &b] {
                  const kernels::LinearJob job{.weight = next_weight(kind, out, in), .y = y->view};
                  b.ops->linear(b.stream, {.x = x->view, .jobs = {&job, 1}});
                },
                limit, std::string(limit) == "read" ? bytes : ops};
  };
}

// top-k of `experts` experts and the shared one; rows choose round robin.
Make moe(int64_t d, int64_t inner, int num_experts, int top_k, int64_t rows, bool with_shared, const char* limit) {
  return [=](Bench& b) {
    auto x = std::make_shared<Floats>(rows, d), z = std::make_shared<Floats>(rows, d),
         w = std::make_shared<Floats>(rows, top_k);
    auto ids = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows * top_k));
    std::vector<bool> used(static_cast<size_t>(num_experts));
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<int32_t> row;
      for (int k = 0; k < top_k; ++k) row.push_back(static_cast<int32_t>((t * top_k + k) * 7 % num_experts));
      std::sort(row.begin(), row.end());
      for (int k = 0; k < top_k; ++k)
        (*ids)[static_cast<size_t>(t * top_k + k)] = row[static_cast<size_t>(k)],
                                               used[static_cast<size_t>(row[static_cast<size_t>(k)])] = true;
    }
    const double touched = static_cast<double>(std::count(used.begin(), used.end(), true));
    const double matrix = static_cast<double>(d * inner);
    const double bytes = 3 * matrix * (touched * 0.53125 + (with_shared ? 1 : 0));
    const double ops = 6 * matrix * static_cast<double>(rows) * top_k;
    return Work{[=, &b] {
                  std::vector<kernels::ExpertWeights> experts(static_cast<size_t>(num_experts));
                  for (int e = 0; e < num_experts; ++e) {
                    if (!used[static_cast<size_t>(e)]) continue;
                    for (Weight* weight : {&experts[e].w1, &experts[e].w3})
                      *weight = next_weight(Weight::Kind::kFp4, inner, d);
                    experts[e].w2 = next_weight(Weight::Kind::kFp4, d, inner);
                  }
                  kernels::ExpertWeights shared{next_weight(Weight::Kind::kFp8, inner, d),
                                                next_weight(Weight::Kind::kFp8, d, inner),
                                                next_weight(Weight::Kind::kFp8, inner, d)};
                  b.ops->moe(b.stream, {.x = x->view,
                                        .ids = TensorView::make(ids->data(), DType::kI32, rows, top_k),
                                        .weights = w->view,
                                        .experts = experts,
                                        .shared = with_shared ? &shared : nullptr,
                                        .limit = 10,
                                        .z = z->view});
                },
                limit, std::string(limit) == "read" ? bytes : ops};
  };
}

// One sequence whose rows follow a full window; every row has chosen entries of a ratio-1 cache.
struct Sequence {
  int64_t rows, context;
  kernels::Run run;
  kernels::Batch batch;
  std::vector<int64_t> positions;
  std::vector<int32_t> run_of_row, blocks;
  Floats cos, sin;
  std::vector<uint8_t> window, records, main, index;
  kernels::WindowCache window_cache;
  kernels::GlobalCache global;

  Sequence(int64_t num_rows, int64_t num_context, int head_dim, int index_dim)
      : rows(num_rows),
        context(num_context),
        run_of_row(static_cast<size_t>(num_rows)),
        cos(num_rows, 32),
        sin(num_rows, 32) {
    run = {0, static_cast<int32_t>(rows), context - rows, 0, nullptr, 0, 0};
    for (int64_t i = 0; i < rows; ++i) positions.push_back(run.first_pos + i);
    for (int64_t i = 0; i < (context + 127) / 128; ++i) blocks.push_back(static_cast<int32_t>(i));
    run.block_table = blocks.data();
    batch = {static_cast<int>(rows), {&run, 1}, positions.data(), run_of_row.data(), nullptr};
    auto fill = [](std::vector<uint8_t>& v, int64_t n) {
      v.resize(static_cast<size_t>(n));
      std::minstd_rand rng(3);
      for (uint8_t& b : v) b = static_cast<uint8_t>(rng() % 0x78);
    };
    const int64_t record = head_dim + head_dim / 32;
    fill(window, 134 * record);
    fill(records, rows * record);
    for (std::vector<uint8_t>* v : {&window, &records}) {
      for (size_t at = 0; at < v->size(); at += static_cast<size_t>(record)) {
        std::fill_n(v->begin() + static_cast<int64_t>(at) + head_dim, head_dim / 32, uint8_t{120});
      }
    }
    global.main_block_bytes = 128 * (head_dim / 2 + head_dim / 16);
    global.index_block_bytes = 128 * (index_dim / 2 + index_dim / 32);
    const int64_t num_blocks = static_cast<int64_t>(blocks.size());
    fill(main, num_blocks * global.main_block_bytes);
    fill(index, num_blocks * global.index_block_bytes);
    for (int64_t b = 0; b < num_blocks; ++b) {
      std::fill_n(index.begin() + b * global.index_block_bytes + 128 * index_dim / 2, 128 * index_dim / 32,
                  uint8_t{126});
    }
    global.main = reinterpret_cast<std::byte*>(main.data());
    global.index = reinterpret_cast<std::byte*>(index.data());
    global.ratio = 1, global.head_dim = head_dim, global.index_dim = index_dim;
    window_cache = {reinterpret_cast<std::byte*>(window.data()), 134, 128, head_dim, kernels::RecordFormat::kPacked};
  }
};

Make attention(int64_t rows, int heads, int head_dim, int64_t top_k) {
  return [=](Bench& b) {
    auto s = std::make_shared<Sequence>(rows, 65536, head_dim, 128);
    auto q = std::make_shared<Floats>(rows, int64_t{heads} * head_dim),
         out = std::make_shared<Floats>(rows, int64_t{heads} * head_dim);
    auto chosen = std::make_shared<std::vector<int32_t>>();
    auto sink = std::make_shared<std::vector<float>>(static_cast<size_t>(heads), 0.f);
    for (int64_t i = 0; i < rows * top_k; ++i) chosen->push_back(static_cast<int32_t>(i % top_k * 100));
    const double keys = 128 + static_cast<double>(top_k);
    return Work{[=, &b] {
                  b.ops->attention(b.stream, {.batch = &s->batch,
                                              .q = q->view,
                                              .rope = {s->cos.view, s->sin.view},
                                              .records = reinterpret_cast<const std::byte*>(s->records.data()),
                                              .window = s->window_cache,
                                              .chosen = TensorView::make(chosen->data(), DType::kI32, rows, top_k),
                                              .global = s->global,
                                              .sink = sink->data(),
                                              .heads = heads,
                                              .head_dim = head_dim,
                                              .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                              .out = out->view});
                },
                "fma_f32", 4.0 * heads * head_dim * keys * static_cast<double>(rows)};
  };
}

Make select(int64_t rows, int64_t context, const char* limit) {
  return [=](Bench& b) {
    auto s = std::make_shared<Sequence>(rows, context, 32, 128);
    auto q = std::make_shared<Floats>(rows, 32 * 128), w = std::make_shared<Floats>(rows, 32);
    auto chosen = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows * 512));
    return Work{[=, &b] {
                  b.ops->select(b.stream, {.batch = &s->batch,
                                           .q = q->view,
                                           .head_weights = w->view,
                                           .heads = 32,
                                           .head_scale = 1.f / 64,
                                           .rope = {s->cos.view, s->sin.view},
                                           .cache = s->global,
                                           .top_k = 512,
                                           .chosen = TensorView::make(chosen->data(), DType::kI32, rows, 512)});
                },
                limit,
                std::string(limit) == "read" ? static_cast<double>(rows * context) * 68
                                             : 2.0 * 32 * 128 * static_cast<double>(rows * context)};
  };
}

Make mhc(int64_t rows, int64_t d) {
  return [=](Bench& b) {
    const int m = 4;
    auto h = std::make_shared<Floats>(rows, m * d), y = std::make_shared<Floats>(rows, d),
         x = std::make_shared<Floats>(rows, d);
    auto pre = std::make_shared<Floats>(rows, m), pre_out = std::make_shared<Floats>(rows, m),
         post = std::make_shared<Floats>(rows, m), comb = std::make_shared<Floats>(rows, m * m),
         base = std::make_shared<Floats>(1, 24);
    auto gain = std::make_shared<std::vector<bf16>>(static_cast<size_t>(d), bf16{0x3f80});
    for (float& v : comb->values) v = 0.25f;
    for (float& v : post->values) v = 0.5f;
    return Work{
        [=, &b] {
          b.ops->mhc(b.stream, {.streams = h->view,
                                .y = y->view,
                                .post_in = post->view,
                                .comb_in = comb->view,
                                .fn = static_cast<const float*>(next_weight(Weight::Kind::kF32, 24, m * d).codes),
                                .base = base->values.data(),
                                .scale = base->values.data(),
                                .pre_in = pre->view,
                                .pre_out = pre_out->view,
                                .post_out = post->view,
                                .comb_out = comb->view,
                                .gain = gain->data(),
                                .x = x->view,
                                .m = m,
                                .sinkhorn_iters = 20,
                                .rms_eps = 1e-20f,
                                .hc_eps = 1e-6f});
        },
        rows < 16 ? "read" : "fma_f32",
        rows < 16 ? 24.0 * m * static_cast<double>(d) * 4 : 2.0 * (24 + 20) * m * static_cast<double>(d * rows)};
  };
}

Make route(int64_t rows) {
  return [=](Bench& b) {
    auto logits = std::make_shared<Floats>(rows, 384), bias = std::make_shared<Floats>(1, 384),
         w = std::make_shared<Floats>(rows, 6);
    auto ids = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows * 6));
    return Work{[=, &b] {
                  b.ops->route(b.stream, {.logits = logits->view,
                                          .bias = bias->values.data(),
                                          .top_k = 6,
                                          .scale = 1.5f,
                                          .ids = TensorView::make(ids->data(), DType::kI32, rows, 6),
                                          .weights = w->view});
                },
                "fma_f32", 384.0 * static_cast<double>(rows)};
  };
}

void register_all() {
  using enum Weight::Kind;
  // Decode, real widths: one expert layer, and the dense matrices.
  add("moe_decode/6_of_384+shared/rows:1", moe(5120, 2304, 384, 6, 1, true, "read"));
  add("moe_decode/6_of_384/rows:1", moe(5120, 2304, 384, 6, 1, false, "read"));
  add("moe_decode/6_of_384+shared/rows:8", moe(5120, 2304, 384, 6, 8, true, "read"));
  add("moe_decode/6_of_64x768/rows:1", moe(1536, 768, 64, 6, 1, false, "read"));
  for (int64_t rows : {1, 2, 4, 8}) {
    add(fmt::format("linear_fp8/8192x5120/rows:{}", rows), linear(kFp8, 8192, 5120, rows, "read"));
    add(fmt::format("linear_fp4/8192x5120/rows:{}", rows), linear(kFp4, 8192, 5120, rows, "read"));
    add(fmt::format("linear_bf16/8192x5120/rows:{}", rows), linear(kBF16, 8192, 5120, rows, "read"));
  }
  add("mhc/5120/rows:1", mhc(1, 5120));
  add("attention/640_keys/rows:1", attention(1, 64, 512, 512));
  add("select/65536/rows:1", select(1, 65536, "read"));
  add("select/1048576/rows:1", select(1, 1 << 20, "read"));
  // Prefill.
  for (int64_t rows : {16, 64, 512}) {
    add(fmt::format("linear_fp8/2048x5120/rows:{}", rows), linear(kFp8, 2048, 5120, rows, "int16"));
    add(fmt::format("linear_fp4/2048x5120/rows:{}", rows), linear(kFp4, 2048, 5120, rows, "int8"));
  }
  add("linear_bf16/512x5120/rows:512", linear(kBF16, 512, 5120, 512, "fma_f32"));
  add("moe_prefill/6_of_64x768/rows:512", moe(1536, 768, 64, 6, 512, false, "int8"));
  add("attention/640_keys/rows:32", attention(32, 64, 512, 512));
  add("select/65536/rows:8", select(8, 65536, "int8"));
  add("mhc/5120/rows:256", mhc(256, 5120));
  add("route/384/rows:256", route(256));
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  deepinfer::register_all();
  for (int threads : {1, deepinfer::available_threads()}) {
    std::printf("%s", deepinfer::bench::to_table(deepinfer::limits(threads)).c_str());
    if (deepinfer::available_threads() == 1) break;
  }
  benchmark::AddCustomContext("processor", deepinfer::bench::processor_name());
  benchmark::RunSpecifiedBenchmarks();
}
