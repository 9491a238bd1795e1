// A checkpoint directory, checked against its configuration, and the ways to get at its bytes.
//
//   open()  reads config.json and all headers; no payload. Names, shapes and dtypes must be those of inventory(config).
//           Vision tensors may be absent; tensors that belong to nothing are listed in `unknown_tensors`.
//   map()   a view into the shared mapping of the shard: pages come in on first touch and may be dropped again.
//   read()  copies a slice into the caller's buffers with parallel positioned reads; memory use is the buffers'.
//   Slices are given in logical rows and columns; borders must respect the scale groups (32 columns; 32 rows for fp8).
//
// Thread-safe after open. Handles made by for_rank() share files and mappings and count what they deliver for
// themselves.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "weights/config.h"
#include "weights/inventory.h"
#include "weights/slice.h"

namespace deepinfer::weights {

// A weight, or a slice of one, where its bytes lie. Scale of element (i, j): scales[i / scale_group_rows * scale_stride
// + j / 32].
struct WeightView {
  Kind kind = Kind::kBF16;
  int64_t rows = 0, cols = 0;        // logical
  const std::byte* codes = nullptr;  // [rows, code_stride bytes]
  int64_t code_stride = 0;           // bytes between rows
  const uint8_t* scales = nullptr;   // nullptr for bf16 and f32
  int64_t scale_stride = 0;          // bytes between rows of scales
  int scale_group_rows = 1;          // 32 for fp8, else 1
};

class Checkpoint {
 public:
  // A directory with config.json and safetensors files. kNotFound, kCorrupt or kInvalid name the file and the tensor.
  static Result<Checkpoint> open(const std::string& directory);

  // Random weights in memory instead of files: the bytes that make-random would write for this configuration and seed.
  // kExhausted: the memory is not to be had.
  static Result<Checkpoint> random(const ModelConfig& config, uint64_t seed, ThreadPool& pool);

  Checkpoint(Checkpoint&& other) noexcept;
  Checkpoint& operator=(Checkpoint&&) = delete;
  ~Checkpoint();

  // A second handle on the same files, its counter at zero.
  Checkpoint for_rank() const;

  const std::string& directory() const;  // empty for random()
  const ModelConfig& config() const;
  const std::vector<WeightSpec>& specs() const;
  const TensorFiles& files() const;
  const std::vector<std::string>& unknown_tensors() const;
  const std::vector<std::string>& vision_tensors() const;  // present, not used yet

  // nullptr if the model has no such weight.
  const WeightSpec* find(std::string_view name) const;
  Slice whole(const WeightSpec& spec) const { return {0, spec.rows, 0, spec.cols}; }

  // A NaN among the scales (byte 255) is kCorrupt, in map and in read; Engram tables are too large to look before use.
  Result<WeightView> map(std::string_view name) const;
  Result<WeightView> map(std::string_view name, const Slice& slice) const;
  // `codes` and `scales` must have the sizes of slice_bytes. `pool` may be nullptr: the caller's thread alone.
  Result<void> read(std::string_view name, const Slice& slice, std::span<std::byte> codes, std::span<uint8_t> scales,
                    ThreadPool* pool) const;

  // Rows [begin, end) of the scales alone, into `out` ([end - begin, scale_cols]); not counted as delivered.
  Result<void> read_scales(std::string_view name, int64_t begin, int64_t end, std::span<uint8_t> out) const;

  // Bytes handed out through this handle, mapped slices included.
  int64_t delivered_bytes() const { return delivered_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Shared;  // files, mappings, inventory: owned jointly by the handles of all ranks of the process
  explicit Checkpoint(std::shared_ptr<const Shared> shared);

  std::shared_ptr<const Shared> shared_;
  mutable std::atomic<int64_t> delivered_bytes_{0};
};

}  // namespace deepinfer::weights
