// What the tests of every backend share: memory with guard pages, random inputs in the model's formats, random batches.
//
//   Backend   one end of a comparison: operations, stream, and a device (nullptr: guarded host memory)
//   Memory    the buffers of one call; on a CPU each ends at an inaccessible page, so a read or write too far traps
//   Rng       everything is a function of a seed: equal seeds give equal inputs on every backend
//   Scene     a batch of several runs with their caches. The content of a cache is a function of (seed, slot or block,
//             position), so that a batch cut into pieces sees the same history as the whole.
//
// Values that the model keeps in bf16 are representable in it, so that F32 and BF16 backends start from the same
// numbers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/cpu/features.h"
#include "kernels/ops.h"

namespace deepinfer::kernels::testing {

// ---- random numbers ---------------------------------------------------------------------------------------------

class Rng {
 public:
  // The stream of numbers named by the seed and up to three coordinates.
  explicit Rng(uint64_t seed, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) : state_(seed) {
    for (uint64_t part : {a, b, c}) state_ = next() ^ (part * 0x9e3779b97f4a7c15u);
  }
  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  // Variance 1, within 3.5 of 0: the sum of four uniform numbers, which is cheap and the same on every machine.
  float normal() {
    const uint64_t bits = next();
    const int64_t sum =
        static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536);
  }

 private:
  uint64_t state_;
};

// ---- host data --------------------------------------------------------------------------------------------------

struct HostMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;

  HostMatrix() = default;
  HostMatrix(int64_t num_rows, int64_t num_cols)
      : rows(num_rows), cols(num_cols), values(static_cast<size_t>(num_rows * num_cols)) {}
  float* row(int64_t r) { return values.data() + r * cols; }
  const float* row(int64_t r) const { return values.data() + r * cols; }
  HostMatrix slice(int64_t begin, int64_t count) const {
    HostMatrix part(count, cols);
    std::copy_n(row(begin), count * cols, part.values.data());
    return part;
  }
};

// The temper of activations.
enum class Data {
  kNormal,
  kRough,  // by rows: all zero, tiny, huge, groups of zeros, outliers, exponents that fall along the row
  kTies,   // few distinct values: equal scores, products on rounding borders
  kNaN,    // normal with NaN and infinities strewn in
};

inline float draw(Rng& rng, Data data) {
  switch (data) {
    case Data::kTies:
      return static_cast<float>(rng.below(5) - 2) * 0.5f;
    case Data::kNaN: {
      const int64_t dice = rng.below(50);
      return dice == 0 ? std::nanf("") : dice == 1 ? INFINITY : dice == 2 ? -INFINITY : rng.normal();
    }
    default:
      return rng.normal();
  }
}

// bf16 values. Rows depend on the seed and their index only.
inline HostMatrix random_activations(uint64_t seed, int64_t rows, int64_t cols, Data data = Data::kNormal) {
  HostMatrix m(rows, cols);
  for (int64_t t = 0; t < rows; ++t) {
    Rng rng(seed, 1, static_cast<uint64_t>(t));
    const int64_t temper = data == Data::kRough ? rng.below(7) : 0;
    for (int64_t c = 0; c < cols; ++c) {
      float v = draw(rng, data);
      if (temper == 1) v = 0;
      if (temper == 2) v *= 1e-6f;
      if (temper == 3) v *= 3e4f;
      if (temper == 4 && c / 32 % 2 == 0) v = 0;
      if (temper == 5 && c % 37 == 5) v *= 1000;
      if (temper == 6) v *= std::exp2(20 - 60 * static_cast<float>(c) / static_cast<float>(cols));
      m.row(t)[c] = round_bf16(v);
    }
  }
  return m;
}
// fp32 values, as the model keeps them for mixes, logits and the like.
inline HostMatrix random_floats(uint64_t seed, int64_t rows, int64_t cols, float scale = 1, Data data = Data::kNormal) {
  HostMatrix m(rows, cols);
  for (int64_t t = 0; t < rows; ++t) {
    Rng rng(seed, 2, static_cast<uint64_t>(t));
    for (int64_t c = 0; c < cols; ++c) m.row(t)[c] = scale * draw(rng, data);
  }
  return m;
}
inline std::vector<bf16> random_gain(uint64_t seed, int64_t n) {
  Rng rng(seed, 3);
  std::vector<bf16> gain(static_cast<size_t>(n));
  for (bf16& g : gain) g = to_bf16(1 + 0.2f * rng.normal());
  return gain;
}

// ---- formats, decoded on their own ------------------------------------------------------------------------------

inline double e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}
inline double e2m1_value(uint8_t code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(2 + mantissa, exponent - 2);
  return code & 8 ? -magnitude : magnitude;
}
inline double ue8m0_value(uint8_t code) {
  return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
}

// Records as values, one row each.
inline void decode_window_record(RecordFormat format, const std::byte* record, int dim, float* out) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(record);
  if (format == RecordFormat::kF32) std::memcpy(out, record, static_cast<size_t>(4 * dim));
  for (int i = 0; i < dim && format == RecordFormat::kPacked; ++i) {
    out[i] = static_cast<float>(e4m3_value(bytes[i]) * ue8m0_value(bytes[dim + i / 32]));
  }
}
inline uint8_t nibble_of(const uint8_t* bytes, int64_t i) {
  return i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
}
// Entry and index key number `at` of a block on the host.
inline void decode_entry_of(const GlobalCache& cache, const std::byte* main_block, int64_t at, float* out) {
  const int dim = cache.head_dim;
  const std::byte* record = main_block + at * entry_record_bytes(cache.format, dim);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(record);
  if (cache.format == RecordFormat::kF32) std::memcpy(out, record, static_cast<size_t>(4 * dim));
  for (int i = 0; i < dim && cache.format == RecordFormat::kPacked; ++i) {
    out[i] = static_cast<float>(e2m1_value(nibble_of(bytes, i)) * e4m3_value(bytes[dim / 2 + i / 16]));
  }
}
inline void decode_index_of(const GlobalCache& cache, const std::byte* index_block, int64_t at, float* out) {
  const int dim = cache.index_dim;
  if (cache.format == RecordFormat::kF32) std::memcpy(out, index_block + 4 * dim * at, static_cast<size_t>(4 * dim));
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(index_block);
  const uint8_t* scales = codes + cache.entries_per_block() * (dim / 2) + at * (dim / 32);
  for (int i = 0; i < dim && cache.format == RecordFormat::kPacked; ++i) {
    out[i] = static_cast<float>(e2m1_value(nibble_of(codes, at * dim + i)) * ue8m0_value(scales[i / 32]));
  }
}

// A weight in the checkpoint's format together with its exact values.
struct HostWeight {
  Weight::Kind kind = Weight::Kind::kNone;
  int64_t rows = 0, cols = 0;
  std::vector<std::byte> codes;
  std::vector<uint8_t> scales;
  HostMatrix values;
};

inline void append_nibble(std::vector<std::byte>& codes, int64_t index, uint8_t nibble) {
  std::byte& byte = codes[static_cast<size_t>(index / 2)];
  byte |= static_cast<std::byte>(index % 2 == 0 ? nibble : nibble << 4);
}

// Values of about 1 / sqrt(cols), with scales from 2^-4 to 2^3 times that and some groups of zeros.
// f(code) of every code, made once: the definitions below cost a call to ldexp each.
template <double (*f)(uint8_t)>
double tabled(uint8_t code) {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> v{};
    for (size_t c = 0; c < v.size(); ++c) v[c] = f(static_cast<uint8_t>(c));
    return v;
  }();
  return values[code];
}

inline HostWeight random_weight(uint64_t seed, Weight::Kind kind, int64_t rows, int64_t cols) {
  HostWeight w{.kind = kind, .rows = rows, .cols = cols, .codes = {}, .scales = {}, .values = HostMatrix(rows, cols)};
  Rng rng(seed, 4, static_cast<uint64_t>(kind));
  const float unit = 1 / std::sqrt(static_cast<float>(cols));
  const int64_t count = rows * cols;
  if (kind == Weight::Kind::kF32 || kind == Weight::Kind::kBF16) {
    w.codes.resize(static_cast<size_t>(count * (kind == Weight::Kind::kF32 ? 4 : 2)));
    for (int64_t i = 0; i < count; ++i) {
      const float v = unit * rng.normal();
      const bf16 rounded = to_bf16(v);
      w.values.values[i] = kind == Weight::Kind::kF32 ? v : to_float(rounded);
      if (kind == Weight::Kind::kF32) std::memcpy(&w.codes[i * 4], &v, 4);
      if (kind == Weight::Kind::kBF16) std::memcpy(&w.codes[i * 2], &rounded, 2);
    }
    return w;
  }
  const bool is_fp4 = kind == Weight::Kind::kFp4;
  const int64_t scale_rows = kind == Weight::Kind::kFp8 ? ceil_div(rows, 32) : rows, scale_cols = cols / 32;
  const int unit_exponent = std::ilogb(unit) - (is_fp4 ? 1 : 6);  // codes are about 2 and about 64
  w.scales.resize(static_cast<size_t>(scale_rows * scale_cols));
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(127 + unit_exponent + rng.below(8) - 4);
  w.codes.resize(static_cast<size_t>(is_fp4 ? count / 2 : count));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < cols; ++k) {
      const uint8_t scale = w.scales[(kind == Weight::Kind::kFp8 ? i / 32 : i) * scale_cols + k / 32];
      double value = 0;
      if (is_fp4) {
        const uint8_t code = (k / 32 + i) % 11 == 0 ? 0 : static_cast<uint8_t>(rng.below(16));
        append_nibble(w.codes, i * cols + k, code);
        value = tabled<e2m1_value>(code);
      } else {
        const uint8_t code = (k / 32 + i) % 11 == 0 ? 0 : float_to_e4m3(64 * rng.normal());
        w.codes[i * cols + k] = static_cast<std::byte>(code);
        value = tabled<e4m3_value>(code);
      }
      w.values.row(i)[k] = static_cast<float>(value * tabled<ue8m0_value>(scale));
    }
  }
  return w;
}

// ---- memory -----------------------------------------------------------------------------------------------------

// Host memory between two inaccessible pages. The data ends at the second one, up to `alignment`.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t bytes) {
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    mapped_ = round_up(std::max<int64_t>(bytes, 1), page) + 2 * page;
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    DI_CHECK(base_ != MAP_FAILED, "cannot map {} bytes", mapped_);
    ::mprotect(base_, static_cast<size_t>(page), PROT_NONE);
    ::mprotect(base_ + mapped_ - page, static_cast<size_t>(page), PROT_NONE);
    data_ = base_ + mapped_ - page - bytes;
  }
  GuardedBuffer(GuardedBuffer&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), mapped_(other.mapped_), data_(other.data_) {}
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer() {
    if (base_ != nullptr) ::munmap(base_, static_cast<size_t>(mapped_));
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* base_ = nullptr;
  int64_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

struct Backend {
  Ops* ops = nullptr;
  Stream* stream = nullptr;
  Device* device = nullptr;  // nullptr: host memory with guard pages
  int threads = 1;
};

// A backend on this processor with a stream of its own.
struct CpuSide {
  CpuStream stream;
  std::unique_ptr<Ops> ops;
  Backend backend;

  CpuSide(std::unique_ptr<Ops> o, int threads) : stream(threads), ops(std::move(o)) {
    backend = {.ops = ops.get(), .stream = &stream, .threads = threads};
  }
};

// Owns what one test puts on a backend. Every upload is a copy; get() waits for the stream.
class Memory {
 public:
  explicit Memory(const Backend& backend) : backend_(backend) {}

  std::byte* reserve(int64_t bytes, int fill = 0xff) {  // NaN until it is written
    std::byte* data = nullptr;
    if (backend_.device == nullptr) {
      data = guarded_.emplace_back(bytes).data();
      std::memset(data, fill, static_cast<size_t>(bytes));
    } else if (bytes > 0) {
      auto buffer = backend_.device->allocate(bytes);
      DI_CHECK(buffer.has_value(), "test memory of {} bytes", bytes);
      data = static_cast<std::byte*>(device_.emplace_back(std::move(*buffer)).data());
      backend_.stream->fill(data, fill, bytes);
    }
    return data;
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* data = reserve(bytes);
    if (bytes > 0) backend_.stream->copy(data, values.data(), bytes);
    backend_.stream->synchronize();
    return reinterpret_cast<T*>(data);
  }
  TensorView put(const HostMatrix& m, DType dtype) {
    if (dtype == DType::kF32) return TensorView::make(put(m.values), dtype, m.rows, m.cols);
    DI_CHECK(dtype == DType::kBF16, "{}", dtype_name(dtype));
    std::vector<bf16> rounded(m.values.size());
    std::transform(m.values.begin(), m.values.end(), rounded.begin(), to_bf16);
    return TensorView::make(put(rounded), dtype, m.rows, m.cols);
  }
  TensorView activations(const HostMatrix& m) { return put(m, backend_.ops->activation_dtype()); }
  TensorView floats(const HostMatrix& m) { return put(m, DType::kF32); }
  TensorView output(DType dtype, int64_t rows, int64_t cols) {
    return TensorView::make(reserve(rows * cols * dtype_bytes(dtype)), dtype, rows, cols);
  }
  TensorView activation_output(int64_t rows, int64_t cols) {
    return output(backend_.ops->activation_dtype(), rows, cols);
  }
  Weight weight(const HostWeight& w) {
    return {.kind = w.kind,
            .codes = put(w.codes),
            .scales = w.scales.empty() ? nullptr : put(w.scales),
            .rows = w.rows,
            .cols = w.cols};
  }

  template <typename T>
  std::vector<T> get(const T* data, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) backend_.stream->copy(values.data(), data, count * static_cast<int64_t>(sizeof(T)));
    backend_.stream->synchronize();
    return values;
  }
  HostMatrix get(const TensorView& v) {  // F32, BF16 and I32 as floats
    HostMatrix m(v.rows, v.cols);
    for (int64_t t = 0; t < v.rows; ++t) {
      switch (v.dtype) {
        case DType::kF32:
          copy_row<float>(v, t, m, [](float x) { return x; });
          break;
        case DType::kBF16:
          copy_row<bf16>(v, t, m, [](bf16 x) { return to_float(x); });
          break;
        case DType::kI32:
          copy_row<int32_t>(v, t, m, [](int32_t x) { return static_cast<float>(x); });
          break;
        default:
          DI_CHECK(false, "cannot read back {}", dtype_name(v.dtype));
      }
    }
    return m;
  }

 private:
  template <typename T, typename F>
  void copy_row(const TensorView& v, int64_t t, HostMatrix& m, F to_value) {
    const std::vector<T> row = get(v.row<T>(t), v.cols);
    std::transform(row.begin(), row.end(), m.row(t), to_value);
  }

  Backend backend_;
  std::vector<GuardedBuffer> guarded_;
  std::vector<DeviceBuffer> device_;
};

// ---- shapes and batches -----------------------------------------------------------------------------------------

// All sizes of one comparison. The defaults are small; released() has the widths of the real model, with few experts.
struct Shape {
  int64_t rows = 5;
  int64_t hidden = 96;
  int streams = 4, sinkhorn_iters = 20;
  int heads = 3, head_dim = 64, rope_pairs = 8;
  int index_heads = 4, index_dim = 32;
  int64_t experts = 9, expert_width = 64;
  int experts_per_token = 3;
  int window = 8, ring = 13;
  int64_t context = 300;  // positions of a sequence, the batch's own included
  int top_k = 16, candidate_blocks = 4, candidate_block_size = 8;
  Data data = Data::kNormal;

  static Shape released(int64_t rows) {
    return {.rows = rows,
            .hidden = 5120,
            .heads = 64,
            .head_dim = 512,
            .rope_pairs = 32,
            .index_heads = 32,
            .index_dim = 128,
            .experts = 4,
            .expert_width = 2304,
            .experts_per_token = 2,
            .window = 128,
            .ring = 134,
            .context = 3000,
            .top_k = 512,
            .candidate_blocks = 64};
  }
  // Everything as small as it may be.
  static Shape smallest() {
    return {.rows = 3,
            .hidden = 32,
            .streams = 2,
            .heads = 1,
            .head_dim = 32,
            .rope_pairs = 16,
            .index_heads = 1,
            .experts = 5,
            .expert_width = 32,
            .experts_per_token = 1,
            .window = 1,
            .ring = 2,
            .context = 20,
            .top_k = 1,
            .candidate_blocks = 1};
  }
  // Many experts and entries, a window of no round size.
  static Shape uneven() {
    return {.rows = 40,
            .hidden = 160,
            .heads = 8,
            .head_dim = 128,
            .rope_pairs = 32,
            .index_heads = 32,
            .index_dim = 128,
            .experts = 17,
            .expert_width = 96,
            .experts_per_token = 6,
            .window = 33,
            .ring = 40,
            .context = 1500,
            .top_k = 100,
            .candidate_blocks = 20};
  }
  // The released head, with more entries wanted than there are.
  static Shape wide_head() {
    return {.rows = 4,
            .head_dim = 512,
            .rope_pairs = 32,
            .index_dim = 64,
            .window = 128,
            .ring = 134,
            .context = 300,
            .top_k = 512};
  }
};

// A piece of the batch that a seed and a shape define: rows begin .. begin + count - 1.
struct Piece {
  int64_t begin = 0, count = 0;
};

// Runs, positions and caches of a piece of the batch. Window keys, entries and tails of earlier positions are in place.
class Scene {
 public:
  Scene(Memory& memory, const Shape& shape, uint64_t seed, Piece piece, RecordFormat format, int ratio)
      : memory_(memory), shape_(shape), seed_(seed), format_(format), ratio_(ratio) {
    const std::vector<Run> whole = whole_runs(shape, seed);
    const int64_t blocks_per_run = ceil_div(shape.context, 128);
    std::vector<int64_t> positions;
    std::vector<int32_t> run_of_row;
    std::vector<uint8_t> is_image;
    for (const Run& full : whole) {
      const int64_t begin = std::max<int64_t>(full.row_begin, piece.begin);
      const int64_t end = std::min<int64_t>(full.row_begin + full.num_rows, piece.begin + piece.count);
      if (begin >= end) continue;
      Run run = full;
      run.row_begin = static_cast<int32_t>(begin - piece.begin);
      run.num_rows = static_cast<int32_t>(end - begin);
      run.first_pos = full.first_pos + begin - full.row_begin;
      tables_.push_back(block_table(seed, full.slot, static_cast<int64_t>(whole.size()), blocks_per_run));
      run.block_table = memory.put(tables_.back());
      for (int64_t i = 0; i < run.num_rows; ++i) {
        positions.push_back(run.first_pos + i);
        run_of_row.push_back(static_cast<int32_t>(runs_.size()));
        is_image.push_back(Rng(seed, 5, static_cast<uint64_t>(begin + i)).below(4) == 0);
      }
      runs_.push_back(run);
    }
    host_positions_ = positions;
    batch_ = {.num_rows = static_cast<int>(piece.count),
              .runs = runs_,
              .positions = memory.put(positions),
              .run_of_row = memory.put(run_of_row),
              .is_image = memory.put(is_image),
              .device_runs = memory.put(runs_)};
    host_is_image_ = std::move(is_image);
    slots_ = static_cast<int64_t>(whole.size()) + 1;
    num_blocks_ = static_cast<int64_t>(whole.size()) * blocks_per_run + 1;
  }
  Scene(const Scene&) = delete;

  // The runs of the whole batch: between one and four, at the beginning of a sequence, inside its first window, or far
  // in.
  static std::vector<Run> whole_runs(const Shape& shape, uint64_t seed) {
    Rng rng(seed, 6);
    std::vector<Run> runs;
    for (int64_t row = 0; row < shape.rows;) {
      const int64_t left = shape.rows - row;
      const int64_t count = runs.size() == 3 ? left : 1 + rng.below(left);
      const int64_t places[] = {0, rng.below(shape.window), rng.below(std::max<int64_t>(shape.context - count, 1))};
      const int64_t first = std::min(places[rng.below(3)], shape.context - count);
      DI_CHECK(first >= 0, "{} rows do not fit a context of {}", count, shape.context);
      Run run{.row_begin = static_cast<int32_t>(row),
              .num_rows = static_cast<int32_t>(count),
              .first_pos = first,
              .slot = static_cast<int32_t>(runs.size()) + 1};
      if (rng.below(3) == 0) run.window_floor = std::max<int64_t>(0, first + rng.below(count + 1) - shape.window / 2);
      if (rng.below(3) == 0) run.write_floor = round_down(first + rng.below(count + 1), 2);
      runs.push_back(run);
      row += count;
    }
    return runs;
  }

  const Batch& batch() const { return batch_; }
  int64_t position(int64_t row) const { return host_positions_[row]; }
  const std::vector<Run>& runs() const { return runs_; }
  const std::vector<uint8_t>& is_image() const { return host_is_image_; }

  // Window records of the batch's rows.
  std::byte* records() {
    const int64_t bytes = window_record_bytes(format_, shape_.head_dim);
    std::vector<std::byte> all;
    all.reserve(static_cast<size_t>(batch_.num_rows * bytes));
    for (const Run& run : runs_) {
      for (int64_t i = 0; i < run.num_rows; ++i) {
        const std::vector<std::byte> record = window_record(run.slot, run.first_pos + i);
        all.insert(all.end(), record.begin(), record.end());
      }
    }
    return memory_.put(all);
  }
  // The cache before the batch, with the positions that it holds; the rest is NaN.
  WindowCache window() {
    WindowCache cache{.ring = shape_.ring, .window = shape_.window, .head_dim = shape_.head_dim, .format = format_};
    std::vector<std::byte> data(static_cast<size_t>(window_bytes()), std::byte{0xff});
    cache.data = data.data();
    for (const Run& run : runs_) {
      for (int64_t pos = std::max<int64_t>(0, run.first_pos - cache.ring); pos < run.first_pos; ++pos) {
        const std::vector<std::byte> record = window_record(run.slot, pos);
        std::copy(record.begin(), record.end(), cache.record(run.slot, pos));
      }
    }
    cache.data = memory_.put(data);
    return cache;
  }
  int64_t window_bytes() const { return slots_ * shape_.ring * window_record_bytes(format_, shape_.head_dim); }

  // All groups that the piece completes, numbered through.
  std::vector<GroupRun> groups() const {
    std::vector<GroupRun> groups;
    int32_t row = 0;
    for (size_t r = 0; r < runs_.size(); ++r) {
      const int64_t first = runs_[r].first_pos / ratio_, end = (runs_[r].first_pos + runs_[r].num_rows) / ratio_;
      if (first == end) continue;
      groups.push_back({row, static_cast<int32_t>(end - first), first, static_cast<int32_t>(r)});
      row += static_cast<int32_t>(end - first);
    }
    return groups;
  }
  // The group row that each row of the batch completes, or -1.
  std::vector<int32_t> group_of_row() const {
    std::vector<int32_t> rows(static_cast<size_t>(batch_.num_rows), -1);
    for (const GroupRun& g : groups())
      for (int64_t i = 0; i < g.num_groups; ++i)
        rows[static_cast<size_t>(last_row(g, i))] = static_cast<int32_t>(g.group_begin + i);
    return rows;
  }
  // The row of the batch that completes group number i of `g`.
  int64_t last_row(const GroupRun& g, int64_t i) const {
    return runs_[g.run].row_begin + (g.first_group + i) * ratio_ + ratio_ - 1 - runs_[g.run].first_pos;
  }
  // K and G rows of the whole batch's positions and of those before it come from the same function.
  std::vector<float> tail_row(int32_t slot, int64_t pos) const {
    Rng rng(seed_, 7, static_cast<uint64_t>(slot), static_cast<uint64_t>(pos));
    std::vector<float> row(static_cast<size_t>(2 * shape_.head_dim));
    for (float& v : row) v = draw(rng, shape_.data);
    return row;
  }
  TailCache tail() {
    TailCache cache{.ring = shape_.ring, .head_dim = shape_.head_dim};
    std::vector<float> data(static_cast<size_t>(tail_floats()), std::nanf(""));
    cache.data = data.data();
    for (const Run& run : runs_) {
      for (int64_t pos = std::max<int64_t>(0, run.first_pos - cache.ring); pos < run.first_pos; ++pos) {
        const std::vector<float> row = tail_row(run.slot, pos);
        std::copy(row.begin(), row.end(), cache.record(run.slot, pos));
      }
    }
    cache.data = memory_.put(data);
    return cache;
  }
  int64_t tail_floats() const { return slots_ * shape_.ring * 2 * shape_.head_dim; }

  // Entries and index keys: all bytes 0xff, and if `filled` the groups that the batch's rows can see.
  GlobalCache global(bool filled) {
    const int per_block = 128 / ratio_;
    GlobalCache cache{.ratio = ratio_, .head_dim = shape_.head_dim, .index_dim = shape_.index_dim, .format = format_};
    cache.main_block_bytes = per_block * entry_record_bytes(format_, shape_.head_dim) + 64;
    cache.index_block_bytes = per_block * index_record_bytes(format_, shape_.index_dim) + 64;
    std::vector<std::byte> main(static_cast<size_t>(num_blocks_ * cache.main_block_bytes), std::byte{0xff});
    std::vector<std::byte> index(static_cast<size_t>(num_blocks_ * cache.index_block_bytes), std::byte{0xff});
    for (size_t r = 0; filled && r < runs_.size(); ++r) {
      for (int64_t g = 0; g < (runs_[r].first_pos + runs_[r].num_rows) / ratio_; ++g) {
        const int64_t block = tables_[r][g / per_block], at = g % per_block;
        fill_entry(runs_[r].slot, g, main.data() + block * cache.main_block_bytes, at);
        fill_index(runs_[r].slot, g, index.data() + block * cache.index_block_bytes, at);
      }
    }
    cache.main = memory_.put(main);
    cache.index = memory_.put(index);
    main_bytes_ = static_cast<int64_t>(main.size());
    index_bytes_ = static_cast<int64_t>(index.size());
    return cache;
  }
  int64_t main_bytes() const { return main_bytes_; }
  int64_t index_bytes() const { return index_bytes_; }
  int32_t block_of(int32_t run, int64_t group) const { return tables_[run][group * ratio_ / 128]; }

  // Rotation of the batch's rows.
  Rope rope() {
    HostMatrix cos(batch_.num_rows, shape_.rope_pairs), sin(batch_.num_rows, shape_.rope_pairs);
    const std::vector<float> freq = frequencies(shape_);
    for (int64_t t = 0; t < batch_.num_rows; ++t) {
      for (int64_t i = 0; i < shape_.rope_pairs; ++i) {
        cos.row(t)[i] = std::cos(static_cast<float>(host_positions_[t]) * freq[i]);
        sin.row(t)[i] = std::sin(static_cast<float>(host_positions_[t]) * freq[i]);
      }
    }
    return {memory_.floats(cos), memory_.floats(sin)};
  }
  static std::vector<float> frequencies(const Shape& shape) {
    std::vector<float> freq;
    for (int i = 0; i < shape.rope_pairs; ++i) {
      freq.push_back(std::pow(10000.f, -static_cast<float>(i) / static_cast<float>(shape.rope_pairs)));
    }
    return freq;
  }

 private:
  // Distinct blocks for every sequence, in no order; block 0 stays unused.
  static std::vector<int32_t> block_table(uint64_t seed, int32_t slot, int64_t num_runs, int64_t blocks_per_run) {
    std::vector<int32_t> ids(static_cast<size_t>(num_runs * blocks_per_run));
    std::iota(ids.begin(), ids.end(), 1);
    Rng rng(seed, 8);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[rng.below(static_cast<int64_t>(i))]);
    const auto begin = ids.begin() + (slot - 1) * blocks_per_run;
    return {begin, begin + blocks_per_run};
  }
  std::vector<std::byte> window_record(int32_t slot, int64_t pos) const {
    Rng rng(seed_, 9, static_cast<uint64_t>(slot), static_cast<uint64_t>(pos));
    const int dim = shape_.head_dim;
    std::vector<std::byte> record(static_cast<size_t>(window_record_bytes(format_, dim)));
    for (int i = 0; i < dim; ++i) {
      if (format_ == RecordFormat::kF32) {
        const float v = rng.normal();
        std::memcpy(&record[4 * i], &v, 4);
      } else {
        record[i] = static_cast<std::byte>(float_to_e4m3(100 * rng.normal()));
      }
    }
    for (int g = 0; g < dim / 32 && format_ == RecordFormat::kPacked; ++g) {
      record[dim + g] = static_cast<std::byte>(118 + rng.below(4));
    }
    return record;
  }
  void fill_floats(Rng& rng, std::byte* at, int n) const {
    for (int i = 0; i < n; ++i) {
      const float v = draw(rng, shape_.data == Data::kTies ? Data::kTies : Data::kNormal);
      std::memcpy(at + 4 * i, &v, 4);
    }
  }
  void fill_entry(int32_t slot, int64_t group, std::byte* block, int64_t at) const {
    Rng rng(seed_, 10, static_cast<uint64_t>(slot), static_cast<uint64_t>(group));
    const int dim = shape_.head_dim;
    std::byte* record = block + at * entry_record_bytes(format_, dim);
    if (format_ == RecordFormat::kF32) return fill_floats(rng, record, dim);
    for (int i = 0; i < dim / 2; ++i) record[i] = static_cast<std::byte>(rng.below(256));
    for (int i = 0; i < dim / 16; ++i) record[dim / 2 + i] = static_cast<std::byte>(0x28 + rng.below(16));  // 0.25 .. 1
  }
  void fill_index(int32_t slot, int64_t group, std::byte* block, int64_t at) const {
    const bool ties = shape_.data == Data::kTies;  // few distinct keys
    Rng rng(seed_, 11, static_cast<uint64_t>(slot), static_cast<uint64_t>(ties ? group / 5 % 7 : group));
    const int dim = shape_.index_dim;
    if (format_ == RecordFormat::kF32) return fill_floats(rng, block + at * 4 * dim, dim);
    for (int i = 0; i < dim / 2; ++i) block[at * dim / 2 + i] = static_cast<std::byte>(rng.below(256));
    std::byte* scales = block + 128 / ratio_ * (dim / 2);
    for (int i = 0; i < dim / 32; ++i) scales[at * dim / 32 + i] = static_cast<std::byte>(125 + rng.below(3));
  }

  Memory& memory_;
  Shape shape_;
  uint64_t seed_;
  RecordFormat format_;
  int ratio_;
  std::vector<Run> runs_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int64_t> host_positions_;
  std::vector<uint8_t> host_is_image_;
  Batch batch_;
  int64_t slots_ = 0, num_blocks_ = 0, main_bytes_ = 0, index_bytes_ = 0;
};

// The backends of this machine's CPU and the numerics that each is tested in.
struct TestBackend {
  const char* name;
  std::unique_ptr<Ops> (*make)(Numerics);
  std::vector<Numerics> numerics;
};
// The reference, and the CPU backend with the best and with the plainest instruction set of this machine.
inline std::vector<TestBackend> cpu_backends() {
  std::vector<TestBackend> all{{"ref", make_ref_ops, {Numerics::kFp32, Numerics::kQat, Numerics::kVendor}}};
  const size_t count = cpu::usable_tables().size();
  if (count > 0) all.push_back({"cpu", [](Numerics) { return make_cpu_ops(); }, {Numerics::kFast}});
  if (count > 1) {
    all.push_back(
        {"cpu_avx2", [](Numerics) { return cpu::make_ops(*cpu::usable_tables().back()); }, {Numerics::kFast}});
  }
  return all;
}

// ---- comparison -------------------------------------------------------------------------------------------------

struct Tolerance {
  double relative = 0;        // of the largest magnitude of the row
  double equal_fraction = 0;  // of the values that must be equal bit for bit
};

// Empty if `got` is as close to `want` as `tolerance` says; otherwise the worst place.
inline std::string difference(const std::string& name, const HostMatrix& got, const HostMatrix& want,
                              Tolerance tolerance) {
  if (got.rows != want.rows || got.cols != want.cols) {
    return fmt::format("{}: [{}, {}] instead of [{}, {}]", name, got.rows, got.cols, want.rows, want.cols);
  }
  double worst = 0;
  int64_t num_equal = 0, worst_row = 0, worst_col = 0;
  for (int64_t t = 0; t < got.rows; ++t) {
    double largest = 0;
    for (int64_t c = 0; c < got.cols; ++c) {
      if (std::isfinite(want.row(t)[c])) largest = std::max(largest, std::fabs(static_cast<double>(want.row(t)[c])));
    }
    for (int64_t c = 0; c < got.cols; ++c) {
      const float a = got.row(t)[c], b = want.row(t)[c];
      if (a == b || (std::isnan(a) && std::isnan(b))) {
        ++num_equal;
        continue;
      }
      double error = std::fabs(static_cast<double>(a) - b) / largest;
      if (!(error <= 1e30)) error = 1e30;  // NaN or infinity against a number
      if (error > worst) worst = error, worst_row = t, worst_col = c;
    }
  }
  const double equal = got.values.empty() ? 1 : static_cast<double>(num_equal) / static_cast<double>(got.values.size());
  if (worst <= tolerance.relative && equal >= tolerance.equal_fraction) return "";
  return fmt::format(
      "{}: at [{}, {}] {} instead of {}, {:.3g} of the row's largest (allowed {:.3g}); {:.4f} equal (needed {:.4f})",
      name, worst_row, worst_col, got.values.empty() ? 0 : got.row(worst_row)[worst_col],
      want.values.empty() ? 0 : want.row(worst_row)[worst_col], worst, tolerance.relative, equal,
      tolerance.equal_fraction);
}

inline RecordFormat record_format(Numerics n) {
  return n == Numerics::kFp32 ? RecordFormat::kF32 : RecordFormat::kPacked;
}

}  // namespace deepinfer::kernels::testing
