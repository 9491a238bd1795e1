// Single operations against the oracle: tests/golden/kernels/ops.safetensors, made by
// scripts/oracle/make_kernel_golden.py.
//
// fp32 and qat must agree to a few units of fp32. Under vendor the oracle's own fp32 sums decide bf16 roundings, so one
// value in a hundred may lie one step aside.
#include <map>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "kernels/ref/formats.h"
#include "kernels/testing.h"

namespace deepinfer::kernels::testing {
namespace {

struct Entry {
  std::string dtype;
  int64_t rows = 1, cols = 1;
  std::vector<std::byte> bytes;
};

// A safetensors file; vectors are matrices of one row, deeper tensors keep their first axis as rows.
std::map<std::string, Entry> read_golden(const std::string& path) {
  const std::string bytes = read_file(path).value();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  std::map<std::string, Entry> entries;
  const json::value header = json::parse(std::string_view(bytes).substr(8, header_bytes)).value();
  for (const auto& [key, info] : header.as_object()) {
    if (key == "__metadata__") continue;
    Entry& entry = entries[std::string(key)];
    entry.dtype = info.at("dtype").as_string().c_str();
    const json::array& shape = info.at("shape").as_array();
    for (size_t i = 0; i < shape.size(); ++i)
      (i == 0 && shape.size() > 1 ? entry.rows : entry.cols) *= shape[i].as_int64();
    const json::array& range = info.at("data_offsets").as_array();
    const std::byte* data = reinterpret_cast<const std::byte*>(bytes.data()) + 8 + header_bytes;
    entry.bytes.assign(data + range[0].as_int64(), data + range[1].as_int64());
  }
  return entries;
}

template <typename T>
std::vector<T> values_of(const Entry& e) {
  std::vector<T> values(e.bytes.size() / sizeof(T));
  std::memcpy(values.data(), e.bytes.data(), e.bytes.size());
  return values;
}

constexpr int kHeadDim = 64, kIndexDim = 32, kHeads = 4, kIndexHeads = 4, kWindow = 8, kStreams = 4;
constexpr int kFirst = 11, kRows = 12, kPositions = 23;
constexpr float kEps = 1e-20f;

struct Config {
  TestBackend backend;
  Numerics numerics;

  std::string name() const { return std::string(backend.name) + "_" + numerics_name(numerics); }
};
void PrintTo(const Config& config, std::ostream* out) {
  *out << config.name();
}

class Golden : public ::testing::TestWithParam<Config> {
 protected:
  static const std::map<std::string, Entry>& file() {
    static const auto entries = read_golden(DI_SOURCE_DIR "/tests/golden/kernels/ops.safetensors");
    return entries;
  }
  void SetUp() override {
    ops = GetParam().backend.make(GetParam().numerics);
    backend = {.ops = ops.get(), .stream = &stream, .threads = 2};
    memory.emplace(backend);
    const int64_t bytes = ops->workspace_bytes({.rows = 32,
                                                .max_cols = 256,
                                                .max_positions = 128,
                                                .heads = kHeads,
                                                .head_dim = kHeadDim,
                                                .index_heads = kIndexHeads,
                                                .index_dim = kIndexDim,
                                                .attention_keys = 128,
                                                .hidden = 128,
                                                .expert_width = 64,
                                                .experts = 8,
                                                .experts_per_token = 3,
                                                .threads = 2});
    ops->set_workspace({memory->reserve(bytes), bytes});
  }

  const Entry& entry(const std::string& key) const { return file().at(key); }
  HostMatrix matrix(const std::string& key) const {
    const Entry& e = entry(key);
    HostMatrix m(e.rows, e.cols);
    if (e.dtype == "F32") m.values = values_of<float>(e);
    if (e.dtype == "BF16") {
      const std::vector<bf16> values = values_of<bf16>(e);
      std::transform(values.begin(), values.end(), m.values.begin(), [](bf16 v) { return to_float(v); });
    }
    if (e.dtype == "I64") {
      const std::vector<int64_t> values = values_of<int64_t>(e);
      std::transform(values.begin(), values.end(), m.values.begin(), [](int64_t v) { return static_cast<float>(v); });
    }
    return m;
  }
  // The oracle has no `fast`; the CPU's rounds what qat does, and the inputs of its products (expect).
  std::string numerics_of_oracle() const {
    return numerics_name(GetParam().numerics == Numerics::kFast ? Numerics::kQat : GetParam().numerics);
  }
  HostMatrix result(const std::string& key) const { return matrix(numerics_of_oracle() + "." + key); }
  std::vector<uint8_t> mask(const std::string& key) const { return values_of<uint8_t>(entry(key)); }
  std::vector<uint8_t> result_mask(const std::string& key) const { return mask(numerics_of_oracle() + "." + key); }
  // Row lists of a mask, ascending and filled up with -1.
  std::vector<int32_t> lists(const std::vector<uint8_t>& mask, int64_t rows, int64_t width, int step = 1) const {
    std::vector<int32_t> ids(static_cast<size_t>(rows * width), -1);
    const int64_t cols = static_cast<int64_t>(mask.size()) / rows;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0, n = 0; c < cols; c += step) {
        if (mask[t * cols + c] != 0) ids[t * width + n++] = static_cast<int32_t>(c / step);
      }
    }
    return ids;
  }
  TensorView activations(const std::string& key) { return memory->activations(matrix(key)); }
  TensorView floats(const std::string& key) { return memory->floats(matrix(key)); }
  const float* f32(const std::string& key) { return memory->put(matrix(key).values); }
  const bf16* gain(const std::string& key) { return memory->put(values_of<bf16>(entry(key))); }
  Weight weight(const std::string& key, Weight::Kind kind) {
    const Entry& e = entry(key);
    Weight w{.kind = kind, .rows = e.rows, .cols = e.cols};
    if (kind == Weight::Kind::kF32) {
      w.codes = memory->put(matrix(key).values);
    } else {
      w.codes = memory->put(e.bytes);
    }
    if (kind == Weight::Kind::kFp4) w.cols *= 2;
    if (file().count(key + ".scale") != 0) w.scales = memory->put(mask(key + ".scale"));
    return w;
  }
  HostMatrix linear(const TensorView& x, const Weight& w, bool keep_f32 = false) {
    const TensorView y = memory->output(keep_f32 ? DType::kF32 : ops->activation_dtype(), x.rows, w.rows);
    const LinearJob job{.weight = w, .y = y, .keep_f32 = keep_f32};
    ops->linear(stream, {.x = x, .jobs = {&job, 1}});
    return memory->get(y);
  }

  void expect(const std::string& key, const HostMatrix& got, bool is_rounded, double factor = 1) {
    const Numerics numerics = ops->numerics();
    const Tolerance tolerance = is_rounded && numerics == Numerics::kVendor ? Tolerance{factor * 0x1p-8, 0.98}
                                : is_rounded && numerics == Numerics::kFast ? Tolerance{factor * 0.01, 0}
                                                                            : Tolerance{factor * 3e-6, 0};
    EXPECT_EQ(difference(key, got, result(key), tolerance), "");
  }

  // One run over positions first .. first + n - 1 of a sequence that owns block 1.
  Batch batch(int64_t first, int n) {
    std::vector<int64_t> positions(static_cast<size_t>(n));
    std::iota(positions.begin(), positions.end(), first);
    run = {.num_rows = n, .first_pos = first, .slot = 1, .block_table = memory->put(std::vector<int32_t>{1})};
    return {.num_rows = n,
            .runs = {&run, 1},
            .positions = memory->put(positions),
            .run_of_row = memory->put(std::vector<int32_t>(static_cast<size_t>(n), 0))};
  }
  std::vector<float> freq() const { return matrix("rope.freq").values; }
  Rope rope(const Batch& b) {
    const int64_t pairs = static_cast<int64_t>(freq().size());
    Rope r{memory->output(DType::kF32, b.num_rows, pairs), memory->output(DType::kF32, b.num_rows, pairs)};
    const std::vector<float> f = freq();
    ops->rope(stream, {.positions = b.positions, .freq = f, .cos = r.cos, .sin = r.sin});
    return r;
  }
  RecordFormat format() const { return record_format(ops->numerics()); }
  std::byte* window_records(const Batch& b, int64_t first) {
    std::byte* records = memory->reserve(b.num_rows * window_record_bytes(format(), kHeadDim));
    ops->window_keys(stream, {.raw = memory->activations(matrix("cache.raw").slice(first, b.num_rows)),
                              .gain = gain("cache.kv_norm"),
                              .eps = kEps,
                              .rope = rope(b),
                              .format = format(),
                              .records = records});
    return records;
  }
  // Positions 0 .. 22 in two chunks through the compressor of one ratio.
  GlobalCache compressed(int ratio) {
    const std::string p = "cache.ratio" + std::to_string(ratio) + ".";
    GlobalCache cache{.ratio = ratio, .head_dim = kHeadDim, .index_dim = kIndexDim, .format = format()};
    cache.main_block_bytes = 128 / ratio * entry_record_bytes(format(), kHeadDim);
    cache.index_block_bytes = 128 / ratio * index_record_bytes(format(), kIndexDim);
    cache.main = memory->reserve(2 * cache.main_block_bytes);
    cache.index = memory->reserve(2 * cache.index_block_bytes);
    TailCache tail{.ring = 4, .head_dim = kHeadDim};
    tail.data = reinterpret_cast<float*>(memory->reserve(2 * 4 * 2 * kHeadDim * 4));
    for (auto [first, count] : {std::pair{0, kFirst}, std::pair{kFirst, kRows}}) {
      const Batch b = batch(first, count);
      const TensorView x = memory->activations(matrix("cache.x").slice(first, count));
      const bool pairs = ratio == 2;
      const HostMatrix kv = linear(x, weight(p + "wkv", Weight::Kind::kBF16), pairs);
      const TensorView kv_view = pairs ? memory->floats(kv) : memory->activations(kv);
      TensorView gate;
      if (pairs) gate = memory->floats(linear(x, weight(p + "wgate", Weight::Kind::kBF16), true));
      const GroupRun groups{0, (first + count) / ratio - first / ratio, first / ratio, 0};
      const TensorView latent = memory->activation_output(groups.num_groups, kHeadDim);
      ops->pool(stream, {.batch = &b,
                         .groups = {&groups, 1},
                         .kv = kv_view,
                         .gate = gate,
                         .tail = tail,
                         .gain = gain(p + "norm"),
                         .eps = kEps,
                         .ratio = ratio,
                         .latent = latent});
      const TensorView keys = memory->activations(linear(latent, weight(p + "wk", Weight::Kind::kBF16)));
      const std::vector<float> f = freq();
      ops->global_write(stream, {.batch = &b,
                                 .groups = {&groups, 1},
                                 .latent = latent,
                                 .key_raw = keys,
                                 .key_gain = gain(p + "k_norm"),
                                 .eps = kEps,
                                 .freq = f,
                                 .cache = cache});
    }
    return cache;
  }

  CpuStream stream{2};
  std::unique_ptr<Ops> ops;
  Backend backend;
  std::optional<Memory> memory;
  kernels::Run run;
};

TEST_P(Golden, Linear) {
  const TensorView x = activations("linear.x");
  using Kind = Weight::Kind;
  for (auto [name, kind] : {std::pair{"f32", Kind::kF32}, std::pair{"bf16", Kind::kBF16}, std::pair{"fp8", Kind::kFp8},
                            std::pair{"fp8row", Kind::kFp8Row}, std::pair{"fp4", Kind::kFp4}}) {
    const std::string key = std::string("linear.") + name;
    expect(key, linear(x, weight(key, kind)), true);
  }
  const TensorView y = memory->activation_output(8, 64);
  ops->grouped_linear(stream, {.x = x, .weight = weight("linear.grouped", Kind::kFp8), .groups = 2, .y = y});
  expect("linear.grouped", memory->get(y), true);
}

TEST_P(Golden, Mhc) {
  const int64_t rows = 8, d = 32;
  const TensorView streams = activations("mhc.streams"), post = floats("mhc.post"), comb = floats("mhc.comb");
  const TensorView pre_out = memory->output(DType::kF32, rows, kStreams);
  const TensorView x = memory->activation_output(rows, d), folded = memory->activation_output(rows, d);
  ops->mhc(stream, {.streams = streams,
                    .y = activations("mhc.y"),
                    .post_in = post,
                    .comb_in = comb,
                    .fn = f32("mhc.fn"),
                    .base = f32("mhc.base"),
                    .scale = f32("mhc.scale"),
                    .pre_in = floats("mhc.pre"),
                    .pre_out = pre_out,
                    .post_out = post,
                    .comb_out = comb,
                    .gain = gain("mhc.gain"),
                    .x = x,
                    .folded = folded,
                    .m = kStreams,
                    .sinkhorn_iters = 20,
                    .rms_eps = kEps,
                    .hc_eps = 1e-6f});
  expect("mhc.streams", memory->get(streams), true);
  expect("mhc.pre", memory->get(pre_out), false);
  expect("mhc.post", memory->get(post), false);
  expect("mhc.comb", memory->get(comb), false);
  expect("mhc.folded", memory->get(folded), true);
  expect("mhc.x", memory->get(x), true);
}

TEST_P(Golden, Rope) {
  const std::vector<int64_t> positions = values_of<int64_t>(entry("rope.positions"));
  const std::vector<float> f = freq();
  const int64_t rows = static_cast<int64_t>(positions.size()), pairs = static_cast<int64_t>(f.size());
  const TensorView cos = memory->output(DType::kF32, rows, pairs), sin = memory->output(DType::kF32, rows, pairs);
  ops->rope(stream, {.positions = memory->put(positions), .freq = f, .cos = cos, .sin = sin});
  EXPECT_EQ(difference("cos", memory->get(cos), matrix("rope.cos"), {2e-7, 0}), "");
  EXPECT_EQ(difference("sin", memory->get(sin), matrix("rope.sin"), {2e-7, 0}), "");
}

TEST_P(Golden, WindowKeys) {
  const Batch b = batch(0, kPositions);
  const int64_t bytes = window_record_bytes(format(), kHeadDim);
  const std::vector<std::byte> records = memory->get(window_records(b, 0), kPositions * bytes);
  HostMatrix keys(kPositions, kHeadDim);
  for (int t = 0; t < kPositions; ++t) decode_window_record(format(), &records[t * bytes], kHeadDim, keys.row(t));
  expect("cache.window", keys, true, 32);  // a step of e4m3, rarely
}

TEST_P(Golden, CompressedEntriesAndIndexKeys) {
  for (int ratio : {1, 2}) {
    const GlobalCache cache = compressed(ratio);
    const std::vector<std::byte> main = memory->get(cache.main, 2 * cache.main_block_bytes);
    const std::vector<std::byte> index = memory->get(cache.index, 2 * cache.index_block_bytes);
    HostMatrix entries(kPositions / ratio, kHeadDim), keys(kPositions / ratio, kIndexDim);
    for (int64_t g = 0; g < entries.rows; ++g) {
      decode_entry_of(cache, &main[cache.main_block_bytes], g, entries.row(g));
      decode_index_of(cache, &index[cache.index_block_bytes], g, keys.row(g));
    }
    const std::string key = "cache.ratio" + std::to_string(ratio);
    expect(key + ".entries", entries, true, 64);
    expect(key + ".index", keys, true, 64);
  }
}

TEST_P(Golden, SelectWithCandidates) {
  const TensorView candidates = memory->output(DType::kI32, kRows, 3);
  for (auto [layer, ratio, role] :
       {std::tuple{2, 2, SelectParams::Role::kPlain}, std::tuple{6, 1, SelectParams::Role::kSource},
        std::tuple{8, 1, SelectParams::Role::kChooser}}) {
    const GlobalCache cache = compressed(ratio);
    const std::string key = "select.layer" + std::to_string(layer);
    const TensorView q =
        memory->activations(linear(activations("select.latent"), weight(key + ".q", Weight::Kind::kFp8)));
    const TensorView w = memory->activations(linear(activations("select.x"), weight(key + ".w", Weight::Kind::kBF16)));
    const Batch b = batch(kFirst, kRows);
    const TensorView chosen = memory->output(DType::kI32, kRows, 4);
    ops->select(stream, {.batch = &b,
                         .q = q,
                         .head_weights = w,
                         .heads = kIndexHeads,
                         .head_scale = 1 / std::sqrt(static_cast<float>(kIndexDim * kIndexHeads)),
                         .rope = rope(b),
                         .cache = cache,
                         .role = role,
                         .top_k = 4,
                         .candidate_blocks = 3,
                         .candidate_block_size = 2,
                         .candidates = candidates,
                         .chosen = chosen});
    EXPECT_EQ(memory->get(chosen.row<int32_t>(0), kRows * 4), lists(result_mask(key + ".chosen"), kRows, 4)) << key;
    if (role == SelectParams::Role::kSource) {
      EXPECT_EQ(memory->get(candidates.row<int32_t>(0), kRows * 3),
                lists(result_mask("select.candidates"), kRows, 3, 2));
    }
  }
}

TEST_P(Golden, AttentionWithSink) {
  const GlobalCache global = compressed(2);
  const int64_t bytes = window_record_bytes(format(), kHeadDim);
  WindowCache window{.ring = 10, .window = kWindow, .head_dim = kHeadDim, .format = format()};
  window.data = memory->reserve(2 * window.ring * bytes);
  const Batch before = batch(0, kFirst);
  ops->window_store(stream, {.batch = &before, .records = window_records(before, 0), .cache = window});
  const Batch b = batch(kFirst, kRows);
  const TensorView out = memory->activation_output(kRows, kHeads * kHeadDim);
  AttentionParams p{.batch = &b,
                    .q = activations("attention.q"),
                    .rope = rope(b),
                    .records = window_records(b, kFirst),
                    .window = window,
                    .global = global,
                    .sink = f32("attention.sink"),
                    .heads = kHeads,
                    .head_dim = kHeadDim,
                    .scale = 0.125f,
                    .out = out};
  p.chosen = TensorView::make(memory->put(lists(mask("attention.chosen"), kRows, 12)), DType::kI32, kRows, 12);
  ops->attention(stream, p);
  expect("attention.out", memory->get(out), true, 2);
  p.chosen = {};
  p.block_mask = true;
  ops->attention(stream, p);
  expect("attention.block", memory->get(out), true, 2);
}

TEST_P(Golden, RouteAndExperts) {
  const TensorView x = activations("moe.x");
  const TensorView logits = memory->floats(linear(x, weight("moe.gate", Weight::Kind::kBF16), true));
  const TensorView ids = memory->output(DType::kI32, 8, 3), weights = memory->output(DType::kF32, 8, 3);
  ops->route(stream, {.logits = logits,
                      .bias = f32("moe.bias"),
                      .bias_image = f32("moe.bias_vl"),
                      .is_image = memory->put(mask("moe.is_image")),
                      .top_k = 3,
                      .gate_temp = 1,
                      .scale = 1.5f,
                      .ids = ids,
                      .weights = weights});
  expect("moe.ids", memory->get(ids), false);
  expect("moe.weights", memory->get(weights), false);

  auto expert = [&](const std::string& name, Weight::Kind kind) {
    return ExpertWeights{weight(name + ".w1", kind), weight(name + ".w2", kind), weight(name + ".w3", kind)};
  };
  std::vector<ExpertWeights> experts;
  for (int e = 0; e < 8; ++e) experts.push_back(expert("moe.experts." + std::to_string(e), Weight::Kind::kFp4));
  const ExpertWeights shared = expert("moe.shared_experts", Weight::Kind::kFp8);
  const TensorView z = memory->activation_output(8, 64);
  ops->moe(stream,
           {.x = x, .ids = ids, .weights = weights, .experts = experts, .shared = &shared, .limit = 1.5f, .z = z});
  expect("moe.z", memory->get(z), true, 4);
}

TEST_P(Golden, RouteTies) {
  for (int k : {1, 3}) {
    const TensorView logits = floats("route.logits"), ids = memory->output(DType::kI32, logits.rows, k);
    const TensorView weights = memory->output(DType::kF32, logits.rows, k);
    ops->route(stream, {.logits = logits,
                        .bias = f32("route.bias"),
                        .top_k = k,
                        .gate_temp = 1,
                        .scale = 1.5f,
                        .ids = ids,
                        .weights = weights});
    const std::string key = "route.top" + std::to_string(k);
    EXPECT_EQ(difference(key, memory->get(ids), matrix(key + ".ids"), {0, 1}), "");
    EXPECT_EQ(difference(key, memory->get(weights), matrix(key + ".weights"), {1e-6, 0}), "");
  }
}

TEST_P(Golden, Engram) {
  const TensorView streams = activations("engram.streams"), gathered = memory->activation_output(6, 64);
  const Entry& rows = entry("engram.rows");
  ops->engram_gather(stream, {.rows = TensorView::make(memory->put(values_of<int64_t>(rows)), DType::kI64, 6, 2),
                              .table = weight("engram.table", Weight::Kind::kFp8Row),
                              .out = gathered});
  const TensorView kv = memory->activations(linear(gathered, weight("engram.wkv", Weight::Kind::kFp8)));
  ops->engram_gate(stream, {.streams = streams,
                            .kv = kv,
                            .q_weight = gain("engram.q_weight"),
                            .k_weight = gain("engram.k_weight"),
                            .is_image = memory->put(mask("engram.is_image")),
                            .m = kStreams,
                            .eps = kEps});
  expect("engram.streams", memory->get(streams), true);
  const TensorView mean = memory->activation_output(6, 32);
  ops->stream_mean(stream, {.streams = streams, .m = kStreams, .mean = mean});
  expect("engram.mean", memory->get(mean), true);
}

std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (const TestBackend& backend : cpu_backends()) {
    for (Numerics n : backend.numerics) configs.push_back({backend, n});
  }
  return configs;
}
INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(all_configs()), [](const auto& c) { return c.param.name(); });

// The round trips themselves, on values full of ties and at both ends of the scales.
TEST(GoldenFormats, RoundTrips) {
  const auto file = read_golden(DI_SOURCE_DIR "/tests/golden/kernels/ops.safetensors");
  auto matrix = [&](const std::string& key) {
    const Entry& e = file.at(key);
    HostMatrix m(e.rows, e.cols);
    if (e.dtype == "F32") m.values = values_of<float>(e);
    if (e.dtype == "BF16") {
      const std::vector<bf16> values = values_of<bf16>(e);
      std::transform(values.begin(), values.end(), m.values.begin(), [](bf16 v) { return to_float(v); });
    }
    return m;
  };
  const HostMatrix x = matrix("formats.x");
  HostMatrix act = x, fp8 = x, fp4e8 = x, fp4e8_key(x.rows, x.cols), fp4e4(x.rows, x.cols);
  std::vector<std::byte> record(static_cast<size_t>(window_record_bytes(RecordFormat::kPacked, 64)));
  GlobalCache cache{.ratio = 2, .head_dim = 64, .index_dim = 64};
  cache.main_block_bytes = 64 * entry_record_bytes(RecordFormat::kPacked, 64);
  cache.index_block_bytes = 64 * index_record_bytes(RecordFormat::kPacked, 64);
  std::vector<std::byte> main(static_cast<size_t>(cache.main_block_bytes)),
      index(static_cast<size_t>(cache.index_block_bytes));
  cache.main = main.data();
  cache.index = index.data();
  const int32_t table[1] = {0};
  for (int64_t t = 0; t < x.rows; ++t) {
    ref::round_act(act.row(t), x.cols);
    ref::encode_window(RecordFormat::kPacked, x.row(t), 64, record.data());
    decode_window_record(RecordFormat::kPacked, record.data(), 64, fp8.row(t));
    ref::round_fp4e8(fp4e8.row(t), x.cols);
    ref::encode_index_key(cache, table, t, x.row(t));
    decode_index_of(cache, index.data(), t, fp4e8_key.row(t));
    ref::encode_entry(cache, table, t, x.row(t));
    decode_entry_of(cache, main.data(), t, fp4e4.row(t));
  }
  EXPECT_EQ(difference("act", act, matrix("formats.fp8"), {0, 1}), "");
  EXPECT_EQ(difference("fp8", fp8, matrix("formats.fp8"), {0, 1}), "");
  EXPECT_EQ(difference("fp4e8", fp4e8, matrix("formats.fp4e8"), {0, 1}), "");
  EXPECT_EQ(difference("fp4e8 key", fp4e8_key, matrix("formats.fp4e8"), {0, 1}), "");
  EXPECT_EQ(difference("fp4e4", fp4e4, matrix("formats.fp4e4"), {0, 1}), "");
}

}  // namespace
}  // namespace deepinfer::kernels::testing
