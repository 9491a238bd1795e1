// Every operation of the device boundary as a case that any backend can run, and the three comparisons made of them:
//
//   compare_ops       two backends on equal inputs, within the tolerance of the numerics
//   piece_problems    one backend on a batch and on its rows one by one, or run by run: bits must be equal
//   repeat_problems   one backend against itself with another stream (thread count): bits must be equal
//
// A case builds its inputs from (shape, seed) on the host, so both sides see the same numbers, and returns its outputs
// as host matrices. Each function returns one line per deviation; no line means success.
#pragma once

#include <functional>

#include "kernels/testing.h"

namespace deepinfer::kernels::testing {

struct Output {
  enum class Kind {
    kExact,    // a copy or a count
    kFp32,     // kept in fp32 by every numerics
    kRounded,  // "bf16" under vendor
    kRecord,   // decoded cache records: a deviation is one step of e4m3 or e2m1
    kList,     // ascending indices, filled up with -1
  };
  std::string name;
  Kind kind;
  HostMatrix values;
  bool per_row = true;  // row t belongs to row t of the piece
};
using Outputs = std::vector<Output>;

struct OpCase {
  const char* name;
  std::function<Outputs(const Backend&, const Shape&, uint64_t seed, Piece)> run;
  bool by_run = false;  // the rows of a run see each other
};

// Memory of one call, its workspace set and full of NaN.
class CallMemory : public Memory {
 public:
  CallMemory(const Backend& backend, const Shape& s) : Memory(backend) {
    const int64_t widest = std::max({(s.streams + 1) * s.hidden, int64_t{s.heads} * s.head_dim, s.expert_width});
    const int64_t bytes = backend.ops->workspace_bytes({.rows = s.rows,
                                                        .max_cols = widest,
                                                        .max_positions = s.context,
                                                        .heads = s.heads,
                                                        .head_dim = s.head_dim,
                                                        .index_heads = s.index_heads,
                                                        .index_dim = s.index_dim,
                                                        .attention_keys = s.window + std::max<int64_t>(s.top_k, s.rows),
                                                        .hidden = s.hidden,
                                                        .expert_width = s.expert_width,
                                                        .experts = s.experts,
                                                        .experts_per_token = s.experts_per_token,
                                                        .threads = backend.threads});
    backend.ops->set_workspace({reserve(bytes), bytes});
  }
};

namespace cases {

constexpr float kEps = 1e-20f;
using Kind = Output::Kind;

// Inputs of a piece: rows of what the whole batch would get.
inline HostMatrix activations(const Shape& s, uint64_t seed, Piece p, int64_t cols) {
  return random_activations(seed, s.rows, cols, s.data).slice(p.begin, p.count);
}
inline HostMatrix floats(const Shape& s, uint64_t seed, Piece p, int64_t cols, float scale = 1) {
  return random_floats(seed, s.rows, cols, scale, s.data).slice(p.begin, p.count);
}
inline HostMatrix shares(const Shape& s, uint64_t seed, Piece p, int64_t cols) {  // in (0, 1), never NaN
  HostMatrix m = random_floats(seed, s.rows, cols).slice(p.begin, p.count);
  for (float& v : m.values) v = 1 / (1 + std::exp(-v));
  return m;
}
template <typename T>
std::vector<T> per_row(uint64_t seed, Piece p, int64_t low, int64_t high, int64_t cols = 1) {
  std::vector<T> values;
  for (int64_t t = p.begin; t < p.begin + p.count; ++t) {
    Rng rng(seed, 12, static_cast<uint64_t>(t));
    for (int64_t i = 0; i < cols; ++i) values.push_back(static_cast<T>(low + rng.below(high - low)));
  }
  return values;
}
inline TensorView int_matrix(Memory& m, const std::vector<int32_t>& values, int64_t rows) {
  const int64_t cols = rows == 0 ? 1 : static_cast<int64_t>(values.size()) / rows;
  return TensorView::make(m.put(values), DType::kI32, rows, cols);
}
// `count` distinct numbers below n, ascending.
inline std::vector<int32_t> distinct(Rng& rng, int64_t n, int64_t count) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < std::min(count, n); ++i) std::swap(all[i], all[i + rng.below(n - i)]);
  all.resize(static_cast<size_t>(std::min(count, n)));
  std::sort(all.begin(), all.end());
  return all;
}

inline Outputs embed(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView streams = m.activation_output(p.count, s.streams * s.hidden);
  b.ops->embed(*b.stream, {.ids = m.put(per_row<int32_t>(seed, p, -1, 40)),
                           .given = m.floats(floats(s, seed, p, s.hidden)),
                           .table = m.weight(random_weight(seed, Weight::Kind::kBF16, 20, s.hidden)),
                           .row_begin = 7,
                           .streams = streams});
  return {{"streams", Kind::kExact, m.get(streams)}};
}

enum class Site { kFirst, kInner, kLast };
inline Outputs mhc(const Backend& b, const Shape& s, uint64_t seed, Piece p, Site site) {
  CallMemory m(b, s);
  const int k = s.streams, mixes = (2 + k) * k;
  const int64_t width = k * s.hidden;
  const TensorView streams = m.activations(activations(s, seed, p, width));
  const TensorView post = m.floats(shares(s, seed + 1, p, k)), comb = m.floats(shares(s, seed + 2, p, k * k));
  const TensorView pre_out = m.output(DType::kF32, p.count, k);
  const TensorView x = m.activation_output(p.count, s.hidden), folded = m.activation_output(p.count, s.hidden);
  const HostMatrix fn = random_floats(seed + 3, mixes, width, 1 / std::sqrt(static_cast<float>(width)));
  MhcParams params{.streams = streams,
                   .post_in = post,
                   .comb_in = comb,
                   .pre_in = m.floats(shares(s, seed + 4, p, k)),
                   .pre_out = pre_out,
                   .post_out = post,
                   .comb_out = comb,
                   .gain = m.put(random_gain(seed, s.hidden)),
                   .x = x,
                   .m = k,
                   .sinkhorn_iters = s.sinkhorn_iters,
                   .rms_eps = kEps,
                   .hc_eps = 1e-6f};
  if (site != Site::kFirst) params.y = m.activations(activations(s, seed + 5, p, s.hidden));
  if (site != Site::kLast) {
    params.fn = m.put(fn.values);
    params.base = m.put(random_floats(seed + 6, 1, mixes).values);
    params.scale = m.put(std::vector<float>{0.8f, 1.2f, 2});
  }
  if (site == Site::kLast) params.folded = folded;
  b.ops->mhc(*b.stream, params);
  Outputs out{{"streams", Kind::kRounded, m.get(streams)}, {"x", Kind::kRounded, m.get(x)}};
  if (site == Site::kLast) out.push_back({"folded", Kind::kRounded, m.get(folded)});
  if (site != Site::kLast) {
    out.push_back({"pre", Kind::kFp32, m.get(pre_out)});
    out.push_back({"post", Kind::kFp32, m.get(post)});
    out.push_back({"comb", Kind::kFp32, m.get(comb)});
  }
  return out;
}

// All kinds of weights and results over one input; input and results are columns of wider matrices.
inline Outputs linear(const Backend& b, const Shape& s, uint64_t seed, Piece p, bool quantize_input) {
  CallMemory m(b, s);
  const int64_t num_out = 41;
  const TensorView x = m.activations(activations(s, seed, p, s.hidden + 32)).col_range(32, s.hidden);
  struct Want {
    const char* name;
    Weight::Kind kind;
    int64_t first_row;  // of the stored weight
    bool keep_f32, accumulate;
  };
  const Want wants[] = {
      {"fp8", Weight::Kind::kFp8, 0, false, false},       {"fp8 rows 32..", Weight::Kind::kFp8, 32, false, false},
      {"fp8row", Weight::Kind::kFp8Row, 0, false, false}, {"fp4", Weight::Kind::kFp4, 5, false, false},
      {"bf16", Weight::Kind::kBF16, 0, false, false},     {"bf16 kept", Weight::Kind::kBF16, 0, true, false},
      {"f32 kept", Weight::Kind::kF32, 0, true, false},   {"fp8 added", Weight::Kind::kFp8, 0, true, true}};
  std::vector<LinearJob> jobs;
  for (const Want& want : wants) {
    const HostWeight stored = random_weight(seed, want.kind, want.first_row + num_out, s.hidden);
    Weight w = m.weight(stored);
    const int64_t row_bytes = static_cast<int64_t>(stored.codes.size()) / stored.rows;
    w.codes = static_cast<const std::byte*>(w.codes) + want.first_row * row_bytes;
    if (w.scales != nullptr) w.scales += want.first_row / (want.kind == Weight::Kind::kFp8 ? 32 : 1) * (w.cols / 32);
    w.rows = num_out;
    LinearJob job{.weight = w, .keep_f32 = want.keep_f32, .accumulate = want.accumulate};
    job.y = want.accumulate ? m.floats(floats(s, seed + 1, p, num_out))
            : want.keep_f32 ? m.output(DType::kF32, p.count, num_out)
                            : m.activation_output(p.count, num_out + 3).col_range(3, num_out);
    jobs.push_back(job);
  }
  b.ops->linear(*b.stream, {.x = x, .jobs = jobs, .quantize_input = quantize_input});
  Outputs out;
  for (size_t i = 0; i < jobs.size(); ++i) {
    out.push_back({wants[i].name, wants[i].keep_f32 ? Kind::kFp32 : Kind::kRounded, m.get(jobs[i].y)});
  }
  return out;
}

inline Outputs grouped_linear(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const int groups = 3;
  const int64_t k = s.head_dim, rows = 32;
  const TensorView y = m.activation_output(p.count, groups * rows);
  b.ops->grouped_linear(*b.stream, {.x = m.activations(activations(s, seed, p, groups * k)),
                                    .weight = m.weight(random_weight(seed, Weight::Kind::kFp8, groups * rows, k)),
                                    .groups = groups,
                                    .y = y});
  return {{"y", Kind::kRounded, m.get(y)}};
}

inline Outputs rms_norm(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView x = m.activations(activations(s, seed, p, s.hidden));
  b.ops->rms_norm(*b.stream, {.x = x, .y = x, .gain = m.put(random_gain(seed, s.hidden)), .eps = kEps});
  return {{"y", Kind::kRounded, m.get(x)}};
}

inline Outputs rope(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView cos = m.output(DType::kF32, p.count, s.rope_pairs),
                   sin = m.output(DType::kF32, p.count, s.rope_pairs);
  const std::vector<float> freq = Scene::frequencies(s);
  b.ops->rope(*b.stream,
              {.positions = m.put(per_row<int64_t>(seed, p, 0, 1048576)), .freq = freq, .cos = cos, .sin = sin});
  return {{"cos", Kind::kFp32, m.get(cos)}, {"sin", Kind::kFp32, m.get(sin)}};
}

inline Outputs window_keys(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const RecordFormat format = record_format(b.ops->numerics());
  Scene scene(m, s, seed, p, format, 1);
  const int64_t bytes = window_record_bytes(format, s.head_dim);
  std::byte* records = m.reserve(p.count * bytes);
  b.ops->window_keys(*b.stream, {.raw = m.activations(activations(s, seed, p, s.head_dim)),
                                 .gain = m.put(random_gain(seed, s.head_dim)),
                                 .eps = kEps,
                                 .rope = scene.rope(),
                                 .format = format,
                                 .records = records});
  const std::vector<std::byte> data = m.get(records, p.count * bytes);
  HostMatrix keys(p.count, s.head_dim);
  for (int64_t t = 0; t < p.count; ++t) decode_window_record(format, &data[t * bytes], s.head_dim, keys.row(t));
  return {{"keys", Kind::kRecord, keys}};
}

inline HostMatrix byte_matrix(const std::vector<std::byte>& bytes) {
  HostMatrix m(1, static_cast<int64_t>(bytes.size()));
  std::transform(bytes.begin(), bytes.end(), m.values.begin(), [](std::byte v) { return static_cast<float>(v); });
  return m;
}

// The same beside a norm of other rows, in one call or in two.
inline Outputs norm_and_window_keys(const Backend& b, const Shape& s, uint64_t seed, Piece p, bool together) {
  CallMemory m(b, s);
  const RecordFormat format = record_format(b.ops->numerics());
  Scene scene(m, s, seed, p, format, 1);
  const int64_t bytes = p.count * window_record_bytes(format, s.head_dim);
  std::byte* records = m.reserve(bytes);
  const TensorView y = m.activation_output(p.count, s.hidden);
  const RmsNormParams norm{.x = m.activations(activations(s, seed + 1, p, s.hidden)),
                           .y = y,
                           .gain = m.put(random_gain(seed + 1, s.hidden)),
                           .eps = kEps};
  const WindowKeyParams keys{.raw = m.activations(activations(s, seed, p, s.head_dim)),
                             .gain = m.put(random_gain(seed, s.head_dim)),
                             .eps = kEps,
                             .rope = scene.rope(),
                             .format = format,
                             .records = records};
  if (together) {
    b.ops->norm_and_window_keys(*b.stream, norm, keys);
  } else {
    b.ops->rms_norm(*b.stream, norm);
    b.ops->window_keys(*b.stream, keys);
  }
  return {{"y", Kind::kRounded, m.get(y)}, {"records", Kind::kExact, byte_matrix(m.get(records, bytes))}};
}

inline Outputs window_store(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  Scene scene(m, s, seed, p, record_format(b.ops->numerics()), 1);
  const WindowCache cache = scene.window();
  b.ops->window_store(*b.stream, {.batch = &scene.batch(), .records = scene.records(), .cache = cache});
  return {{"cache", Kind::kExact, byte_matrix(m.get(cache.data, scene.window_bytes())), false}};
}

// Results of groups, in the rows that complete them; other rows stay 0.
inline HostMatrix spread(const Scene& scene, const std::vector<GroupRun>& groups, const HostMatrix& by_group,
                         int64_t rows) {
  HostMatrix by_row(rows, by_group.cols);
  for (const GroupRun& g : groups) {
    for (int64_t i = 0; i < g.num_groups; ++i) {
      std::copy_n(by_group.row(g.group_begin + i), by_group.cols, by_row.row(scene.last_row(g, i)));
    }
  }
  return by_row;
}
inline int64_t count_groups(const std::vector<GroupRun>& groups) {
  return groups.empty() ? 0 : groups.back().group_begin + groups.back().num_groups;
}

inline Outputs pool(const Backend& b, const Shape& s, uint64_t seed, Piece p, int ratio) {
  CallMemory m(b, s);
  Scene scene(m, s, seed, p, record_format(b.ops->numerics()), ratio);
  const std::vector<GroupRun> groups = scene.groups();
  HostMatrix kv(p.count, s.head_dim), gate(p.count, s.head_dim);
  for (const Run& run : scene.runs()) {
    for (int64_t i = 0; i < run.num_rows; ++i) {
      const std::vector<float> row = scene.tail_row(run.slot, run.first_pos + i);
      std::copy_n(row.data(), s.head_dim, kv.row(run.row_begin + i));
      std::copy_n(row.data() + s.head_dim, s.head_dim, gate.row(run.row_begin + i));
    }
  }
  if (ratio == 1) {
    for (float& v : kv.values) v = round_bf16(v);
  }
  const TensorView latent = m.activation_output(count_groups(groups), s.head_dim);
  PoolParams params{.batch = &scene.batch(),
                    .groups = groups,
                    .group_of_row = m.put(scene.group_of_row()),
                    .kv = ratio == 1 ? m.activations(kv) : m.floats(kv),
                    .gain = m.put(random_gain(seed, s.head_dim)),
                    .eps = kEps,
                    .ratio = ratio,
                    .latent = latent};
  if (ratio != 1) {
    params.gate = m.floats(gate);
    params.tail = scene.tail();
  }
  b.ops->pool(*b.stream, params);
  Outputs out{{"latent", Kind::kRounded, spread(scene, groups, m.get(latent), p.count)}};
  if (ratio != 1) {
    HostMatrix tail(1, scene.tail_floats());
    tail.values = m.get(params.tail.data, scene.tail_floats());
    out.push_back({"tail", Kind::kExact, tail, false});
  }
  return out;
}

inline Outputs global_write(const Backend& b, const Shape& s, uint64_t seed, Piece p, int ratio) {
  CallMemory m(b, s);
  Scene scene(m, s, seed, p, record_format(b.ops->numerics()), ratio);
  const std::vector<GroupRun> groups = scene.groups();
  const int64_t num_groups = count_groups(groups);
  HostMatrix latent(num_groups, s.head_dim), key(num_groups, s.index_dim);
  for (const GroupRun& g : groups) {
    for (int64_t i = 0; i < g.num_groups; ++i) {
      const uint64_t name =
          Rng(seed, 13, static_cast<uint64_t>(scene.runs()[g.run].slot), static_cast<uint64_t>(g.first_group + i))
              .next();
      std::copy_n(random_activations(name, 1, s.head_dim, s.data).row(0), s.head_dim, latent.row(g.group_begin + i));
      std::copy_n(random_activations(name + 1, 1, s.index_dim, s.data).row(0), s.index_dim, key.row(g.group_begin + i));
    }
  }
  const GlobalCache cache = scene.global(false);
  const std::vector<float> freq = Scene::frequencies(s);
  b.ops->global_write(*b.stream, {.batch = &scene.batch(),
                                  .groups = groups,
                                  .group_of_row = m.put(scene.group_of_row()),
                                  .latent = m.activations(latent),
                                  .key_raw = m.activations(key),
                                  .key_gain = m.put(random_gain(seed, s.index_dim)),
                                  .eps = kEps,
                                  .freq = freq,
                                  .cache = cache});

  std::vector<std::byte> main = m.get(cache.main, scene.main_bytes()), index = m.get(cache.index, scene.index_bytes());
  HostMatrix entries(num_groups, s.head_dim), keys(num_groups, s.index_dim);
  auto erase = [](std::byte* at, int64_t count) { std::memset(at, 0xff, static_cast<size_t>(count)); };
  for (const GroupRun& g : groups) {
    for (int64_t i = 0; i < g.num_groups; ++i) {
      const int64_t group = g.first_group + i, at = group % cache.entries_per_block();
      if (group * ratio < scene.runs()[g.run].write_floor) continue;
      const int64_t block = scene.block_of(g.run, group);
      std::byte *main_block = &main[block * cache.main_block_bytes],
                *index_block = &index[block * cache.index_block_bytes];
      decode_entry_of(cache, main_block, at, entries.row(g.group_begin + i));
      decode_index_of(cache, index_block, at, keys.row(g.group_begin + i));
      const int64_t entry_bytes = entry_record_bytes(cache.format, s.head_dim),
                    key_bytes = index_record_bytes(cache.format, s.index_dim);
      erase(main_block + at * entry_bytes, entry_bytes);
      if (cache.format == RecordFormat::kF32) {
        erase(index_block + at * key_bytes, key_bytes);
      } else {
        erase(index_block + at * s.index_dim / 2, s.index_dim / 2);
        erase(index_block + cache.entries_per_block() * s.index_dim / 2 + at * s.index_dim / 32, s.index_dim / 32);
      }
    }
  }
  HostMatrix stray(1, 2);  // bytes changed where nothing should be written
  stray.values = {static_cast<float>(std::ranges::count_if(main, [](std::byte v) { return v != std::byte{0xff}; })),
                  static_cast<float>(std::ranges::count_if(index, [](std::byte v) { return v != std::byte{0xff}; }))};
  return {{"entries", Kind::kRecord, spread(scene, groups, entries, p.count)},
          {"keys", Kind::kRecord, spread(scene, groups, keys, p.count)},
          {"stray bytes", Kind::kExact, stray, false}};
}

inline Outputs select(const Backend& b, const Shape& s, uint64_t seed, Piece p, SelectParams::Role role, int ratio) {
  CallMemory m(b, s);
  Scene scene(m, s, seed, p, record_format(b.ops->numerics()), ratio);
  std::vector<int32_t> given(static_cast<size_t>(p.count * s.candidate_blocks), -1);
  for (int64_t t = 0; t < p.count; ++t) {
    const int64_t visible = (scene.position(t) + 1) / ratio;
    Rng rng(seed, 14, static_cast<uint64_t>(p.begin + t));
    const std::vector<int32_t> blocks = distinct(rng, ceil_div(visible, s.candidate_block_size), s.candidate_blocks);
    std::copy(blocks.begin(), blocks.end(), given.begin() + t * s.candidate_blocks);
  }
  const bool chooses = role == SelectParams::Role::kChooser;
  const TensorView candidates =
      chooses ? int_matrix(m, given, p.count) : m.output(DType::kI32, p.count, s.candidate_blocks);
  const TensorView chosen = m.output(DType::kI32, p.count, s.top_k);
  b.ops->select(*b.stream, {.batch = &scene.batch(),
                            .q = m.activations(activations(s, seed, p, s.index_heads * s.index_dim)),
                            .head_weights = m.activations(activations(s, seed + 1, p, s.index_heads)),
                            .heads = s.index_heads,
                            .head_scale = 1 / std::sqrt(static_cast<float>(s.index_heads * s.index_dim)),
                            .rope = scene.rope(),
                            .cache = scene.global(true),
                            .role = role,
                            .top_k = s.top_k,
                            .candidate_blocks = s.candidate_blocks,
                            .candidate_block_size = s.candidate_block_size,
                            .candidates = candidates,
                            .chosen = chosen});
  Outputs out{{"chosen", Kind::kList, m.get(chosen)}};
  if (role == SelectParams::Role::kSource) out.push_back({"candidates", Kind::kList, m.get(candidates)});
  return out;
}

enum class Keys { kWindow, kWindowAndChosen, kBlock };
inline Outputs attention(const Backend& b, const Shape& s, uint64_t seed, Piece p, Keys keys, int ratio) {
  CallMemory m(b, s);
  const RecordFormat format = record_format(b.ops->numerics());
  Scene scene(m, s, seed, p, format, ratio);
  const TensorView out = m.activation_output(p.count, s.heads * s.head_dim);
  std::vector<float> sink = random_floats(seed, 1, s.heads).values;
  sink[0] = 40;
  AttentionParams params{.batch = &scene.batch(),
                         .q = m.activations(activations(s, seed, p, s.heads * s.head_dim)),
                         .rope = scene.rope(),
                         .records = scene.records(),
                         .window = scene.window(),
                         .block_mask = keys == Keys::kBlock,
                         .sink = m.put(sink),
                         .heads = s.heads,
                         .head_dim = s.head_dim,
                         .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                         .out = out};
  if (keys == Keys::kWindowAndChosen) {
    std::vector<int32_t> chosen(static_cast<size_t>(p.count * s.top_k), -1);
    for (int64_t t = 0; t < p.count; ++t) {
      Rng rng(seed, 15, static_cast<uint64_t>(p.begin + t));
      const std::vector<int32_t> ids = distinct(rng, (scene.position(t) + 1) / ratio, rng.below(s.top_k + 1));
      std::copy(ids.begin(), ids.end(), chosen.begin() + t * s.top_k);
    }
    params.chosen = int_matrix(m, chosen, p.count);
    params.global = scene.global(true);
  }
  b.ops->attention(*b.stream, params);
  return {{"out", Kind::kRounded, m.get(out)}};
}

inline Outputs route(const Backend& b, const Shape& s, uint64_t seed, Piece p, int top_k) {
  CallMemory m(b, s);
  const TensorView ids = m.output(DType::kI32, p.count, top_k), weights = m.output(DType::kF32, p.count, top_k);
  HostMatrix bias = random_floats(seed + 1, 2, s.experts, 0.5f, s.data == Data::kTies ? Data::kTies : Data::kNormal);
  b.ops->route(*b.stream, {.logits = m.floats(floats(s, seed, p, s.experts, 3)),
                           .bias = m.put(bias.slice(0, 1).values),
                           .bias_image = m.put(bias.slice(1, 1).values),
                           .is_image = m.put(per_row<uint8_t>(seed, p, 0, 2)),
                           .top_k = top_k,
                           .gate_temp = 1.25f,
                           .scale = 1.5f,
                           .ids = ids,
                           .weights = weights});
  return {{"ids", Kind::kList, m.get(ids)}, {"weights", Kind::kFp32, m.get(weights)}};
}

// Inputs of moe: experts first .. end - 1 of all, one shared expert, and a random choice of experts for each row.
struct MoeInputs {
  TensorView x, ids, weights;
  std::vector<ExpertWeights> experts;
  const ExpertWeights* device_experts = nullptr;
  ExpertWeights shared;
};
inline MoeInputs moe_inputs(Memory& m, const Shape& s, uint64_t seed, Piece p, int first, int end) {
  auto expert = [&](uint64_t name, Weight::Kind kind) {
    return ExpertWeights{m.weight(random_weight(name, kind, s.expert_width, s.hidden)),
                         m.weight(random_weight(name + 1, kind, s.hidden, s.expert_width)),
                         m.weight(random_weight(name + 2, kind, s.expert_width, s.hidden))};
  };
  std::vector<int32_t> ids;
  for (int64_t t = p.begin; t < p.begin + p.count; ++t) {
    Rng rng(seed, 16, static_cast<uint64_t>(t));
    const std::vector<int32_t> chosen = distinct(rng, s.experts, s.experts_per_token);
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  MoeInputs in{.x = m.activations(activations(s, seed, p, s.hidden)),
               .ids = int_matrix(m, ids, p.count),
               .weights = m.floats(shares(s, seed + 1, p, s.experts_per_token)),
               .experts = {},
               .shared = expert(seed + 5, Weight::Kind::kFp8)};
  for (int e = first; e < end; ++e)
    in.experts.push_back(expert(seed + 10 * static_cast<uint64_t>(e), Weight::Kind::kFp4));
  in.device_experts = m.put(in.experts);
  return in;
}

inline Outputs moe(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const MoeInputs in = moe_inputs(m, s, seed, p, 0, static_cast<int>(s.experts));
  const TensorView z = m.activation_output(p.count, s.hidden);
  b.ops->moe(*b.stream, {.x = in.x,
                         .ids = in.ids,
                         .weights = in.weights,
                         .experts = in.experts,
                         .device_experts = in.device_experts,
                         .shared = &in.shared,
                         .limit = 2,
                         .z = z});
  return {{"z", Kind::kRounded, m.get(z)}};
}
// The router's choice and the experts, in one call or in two.
inline Outputs route_and_moe(const Backend& b, const Shape& s, uint64_t seed, Piece p, bool together) {
  CallMemory m(b, s);
  const MoeInputs in = moe_inputs(m, s, seed, p, 0, static_cast<int>(s.experts));
  const int top_k = s.experts_per_token;
  const TensorView ids = m.output(DType::kI32, p.count, top_k), weights = m.output(DType::kF32, p.count, top_k);
  const TensorView z = m.activation_output(p.count, s.hidden);
  const RouteParams choice{.logits = m.floats(floats(s, seed, p, s.experts, 3)),
                           .bias = m.put(random_floats(seed + 1, 1, s.experts, 0.5f, Data::kNormal).values),
                           .top_k = top_k,
                           .gate_temp = 1.25f,
                           .scale = 1.5f,
                           .ids = ids,
                           .weights = weights};
  const MoeParams experts{.x = in.x,
                          .ids = ids,
                          .weights = weights,
                          .experts = in.experts,
                          .device_experts = in.device_experts,
                          .shared = &in.shared,
                          .limit = 2,
                          .z = z};
  if (together) {
    b.ops->route_and_moe(*b.stream, choice, experts);
  } else {
    b.ops->route(*b.stream, choice);
    b.ops->moe(*b.stream, experts);
  }
  return {{"ids", Kind::kList, m.get(ids)}, {"weights", Kind::kFp32, m.get(weights)}, {"z", Kind::kRounded, m.get(z)}};
}
// A rank without the first and the last expert: their slots must come out 0.
inline Outputs moe_slots(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const MoeInputs in = moe_inputs(m, s, seed, p, 1, static_cast<int>(s.experts) - 1);
  const TensorView slots = m.activation_output(p.count, s.experts_per_token * s.hidden);
  b.ops->moe(*b.stream, {.x = in.x,
                         .ids = in.ids,
                         .weights = in.weights,
                         .experts = in.experts,
                         .device_experts = in.device_experts,
                         .expert_begin = 1,
                         .limit = 2,
                         .slots = slots});
  return {{"slots", Kind::kRounded, m.get(slots)}};
}

inline Outputs combine(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView z = m.activation_output(p.count, s.hidden);
  b.ops->combine(*b.stream, {.slots = m.activations(activations(s, seed, p, s.experts_per_token * s.hidden)),
                             .shared = m.activations(activations(s, seed + 1, p, s.hidden)),
                             .top_k = s.experts_per_token,
                             .z = z});
  return {{"z", Kind::kRounded, m.get(z)}};
}

inline Outputs swiglu(const Backend& b, const Shape& s, uint64_t seed, Piece p, float limit) {
  CallMemory m(b, s);
  const TensorView a = m.activation_output(p.count, s.expert_width);
  b.ops->swiglu(*b.stream, {.gate = m.activations(activations(s, seed, p, s.expert_width)),
                            .up = m.activations(activations(s, seed + 1, p, s.expert_width)),
                            .a = a,
                            .limit = limit});
  return {{"a", Kind::kRounded, m.get(a)}};
}

inline Outputs engram_gather(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const int64_t n = 5, dim = 64;
  const TensorView out = m.activation_output(p.count, n * dim);
  b.ops->engram_gather(*b.stream,
                       {.rows = TensorView::make(m.put(per_row<int64_t>(seed, p, 0, 60, n)), DType::kI64, p.count, n),
                        .table = m.weight(random_weight(seed, Weight::Kind::kFp8Row, 33, dim)),
                        .row_begin = 11,
                        .out = out});
  return {{"out", Kind::kExact, m.get(out)}};
}

inline Outputs engram_gate(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const int64_t width = s.streams * s.hidden;
  const TensorView streams = m.activations(activations(s, seed, p, width));
  b.ops->engram_gate(*b.stream, {.streams = streams,
                                 .kv = m.activations(activations(s, seed + 1, p, width + s.hidden)),
                                 .q_weight = m.put(random_gain(seed, width)),
                                 .k_weight = m.put(random_gain(seed + 1, width)),
                                 .is_image = m.put(per_row<uint8_t>(seed, p, 0, 2)),
                                 .m = s.streams,
                                 .eps = kEps});
  return {{"streams", Kind::kRounded, m.get(streams)}};
}

inline Outputs stream_mean(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView mean = m.activation_output(p.count, s.hidden);
  b.ops->stream_mean(
      *b.stream,
      {.streams = m.activations(activations(s, seed, p, s.streams * s.hidden)), .m = s.streams, .mean = mean});
  return {{"mean", Kind::kRounded, m.get(mean)}};
}

inline Outputs gather_rows(const Backend& b, const Shape& s, uint64_t seed, Piece p) {
  CallMemory m(b, s);
  const TensorView out = m.activation_output(p.count, s.hidden);
  b.ops->gather_rows(*b.stream, {.table = m.weight(random_weight(seed, Weight::Kind::kBF16, 20, s.hidden)),
                                 .row_begin = 7,
                                 .ids = m.put(per_row<int32_t>(seed, p, 0, 40)),
                                 .out = out});
  return {{"out", Kind::kExact, m.get(out)}};
}

}  // namespace cases

inline std::vector<OpCase> all_cases() {
  using namespace cases;
  using Role = SelectParams::Role;
  // A function with its last arguments given.
  auto with = [](auto function, auto... last) {
    return [=](const Backend& b, const Shape& s, uint64_t seed, Piece p) { return function(b, s, seed, p, last...); };
  };
  return {{"embed", embed},
          {"mhc, first site", with(mhc, Site::kFirst)},
          {"mhc", with(mhc, Site::kInner)},
          {"mhc, last fold", with(mhc, Site::kLast)},
          {"linear", with(linear, true)},
          {"linear, input as it is", with(linear, false)},
          {"grouped_linear", grouped_linear},
          {"rms_norm", rms_norm},
          {"rope", rope},
          {"window_keys", window_keys},
          {"window_store", window_store},
          {"pool, ratio 1", with(pool, 1)},
          {"pool, ratio 2", with(pool, 2)},
          {"global_write, ratio 1", with(global_write, 1)},
          {"global_write, ratio 2", with(global_write, 2)},
          {"select, plain", with(select, Role::kPlain, 2)},
          {"select, source", with(select, Role::kSource, 1)},
          {"select, chooser", with(select, Role::kChooser, 1)},
          {"attention, window", with(attention, Keys::kWindow, 1)},
          {"attention, ratio 1", with(attention, Keys::kWindowAndChosen, 1)},
          {"attention, ratio 2", with(attention, Keys::kWindowAndChosen, 2)},
          {"attention, draft block", with(attention, Keys::kBlock, 1), true},
          {"route", with(route, 3)},
          {"route, one expert", with(route, 1)},
          {"moe", moe},
          {"moe, slots of a rank", moe_slots},
          {"combine", combine},
          {"swiglu", with(swiglu, 2.f)},
          {"swiglu, no limit", with(swiglu, 0.f)},
          {"engram_gather", engram_gather},
          {"engram_gate", engram_gate},
          {"stream_mean", stream_mean},
          {"gather_rows", gather_rows}};
}

// ---- comparisons ------------------------------------------------------------------------------------------------

// What two right implementations may differ by: sums in another order, and under vendor the rare rounding to bf16, e4m3
// or e2m1 that then falls to the other side. `slack` widens the distances for backends with coarser arithmetic (TF32).
inline Tolerance tolerance_of(Output::Kind kind, Numerics numerics, double slack) {
  const bool steps = numerics == Numerics::kVendor || numerics == Numerics::kFast;
  switch (kind) {
    case Output::Kind::kExact:
      return {0, 1};
    case Output::Kind::kFp32:
      // Under vendor mixes come from streams of which one value may be a bf16 step aside.
      return {slack * (steps ? 1e-4 : 2e-5), 0};
    case Output::Kind::kRounded:
      return steps ? Tolerance{slack * 0x1p-6, 0.97} : Tolerance{slack * 2e-5, 0};
    case Output::Kind::kRecord:
      return rounds_caches(numerics) ? Tolerance{0.5, 0.97} : Tolerance{slack * 2e-5, 0};
    case Output::Kind::kList:
      return {1e30, 0.95};
  }
  return {};
}

inline std::vector<std::string> compare_outputs(const std::string& name, const Outputs& got, const Outputs& want,
                                                const std::function<Tolerance(const Output&)>& tolerance) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string line =
        difference(fmt::format("{}: {}", name, want[i].name), got[i].values, want[i].values, tolerance(want[i]));
    if (!line.empty()) problems.push_back(line);
  }
  return problems;
}
inline void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// `got` against `want`, normally the reference backend.
inline std::vector<std::string> compare_ops(const Backend& got, const Backend& want, const Shape& shape, uint64_t seed,
                                            double slack = 1) {
  std::vector<std::string> problems;
  for (const OpCase& c : all_cases()) {
    const Piece whole{0, shape.rows};
    append(problems,
           compare_outputs(c.name, c.run(got, shape, seed, whole), c.run(want, shape, seed, whole),
                           [&](const Output& o) { return tolerance_of(o.kind, want.ops->numerics(), slack); }));
  }
  return problems;
}

// Equal inputs give equal bits on two backends or streams.
inline std::vector<std::string> repeat_problems(const Backend& a, const Backend& b, const Shape& shape, uint64_t seed) {
  std::vector<std::string> problems;
  for (const OpCase& c : all_cases()) {
    const Piece whole{0, shape.rows};
    append(problems, compare_outputs(c.name, c.run(a, shape, seed, whole), c.run(b, shape, seed, whole),
                                     [](const Output&) { return Tolerance{0, 1}; }));
  }
  return problems;
}

// Hostile input may spoil its rows, but lists of ids stay ascending, inside the context, and end with -1.
inline std::vector<std::string> invented_ids(const Backend& backend, const Shape& shape, uint64_t seed) {
  std::vector<std::string> problems;
  for (const OpCase& c : all_cases()) {
    for (const Output& output : c.run(backend, shape, seed, {0, shape.rows})) {
      if (output.kind != Output::Kind::kList) continue;
      for (int64_t t = 0; t < output.values.rows; ++t) {
        float last = -1;
        for (int64_t i = 0; i < output.values.cols; ++i) {
          const float id = output.values.row(t)[i];
          if (id != -1 && !(id > last && id < static_cast<float>(shape.context)))
            problems.push_back(fmt::format("{}: row {}: {}", c.name, t, id));
          last = id == -1 ? INFINITY : id;  // after the first -1 nothing follows
        }
      }
    }
  }
  return problems;
}

// Batch invariance: pieces of the batch give the bits of the whole. Pieces have `piece_rows` rows, or are whole runs.
inline std::vector<std::string> piece_problems(const Backend& backend, const Shape& shape, uint64_t seed,
                                               int64_t piece_rows) {
  std::vector<std::string> problems;
  for (const OpCase& c : all_cases()) {
    const Outputs whole = c.run(backend, shape, seed, {0, shape.rows});
    std::vector<Piece> pieces;
    if (c.by_run) {
      for (const Run& run : Scene::whole_runs(shape, seed)) pieces.push_back({run.row_begin, run.num_rows});
    } else {
      for (int64_t t = 0; t < shape.rows; t += piece_rows) pieces.push_back({t, std::min(piece_rows, shape.rows - t)});
    }
    for (const Piece& piece : pieces) {
      const Outputs part = c.run(backend, shape, seed, piece);
      for (size_t i = 0; i < part.size(); ++i) {
        if (!whole[i].per_row) continue;
        const std::string line =
            difference(fmt::format("{}: {}, rows {} + {}", c.name, part[i].name, piece.begin, piece.count),
                       part[i].values, whole[i].values.slice(piece.begin, piece.count), {0, 1});
        if (!line.empty()) problems.push_back(line);
      }
    }
  }
  return problems;
}

}  // namespace deepinfer::kernels::testing
