// Memory of the global KV blocks: what all sequences share (serving.md 2.1).
//
//   A block is 128 positions over all KV sources: 128 / ratio entries and index keys of each.
//   Storage: per source [num_blocks] x main block, then [num_blocks] x index block, so that a kernel strides by block
//   id. Block 0 belongs to nobody and stays zero: padding rows may read it.
//
// Who holds which block is decided elsewhere; this is memory, its layout, and the way in and out. Owned by the thread
// that owns the stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/packed.h"
#include "device/device.h"
#include "kernels/ops.h"
#include "weights/config.h"

namespace deepinfer::cache {

// Sizes of one block, from the configuration alone.
struct GlobalLayout {
  struct Source {
    int layer = 0, ratio = 1;
    int64_t main_bytes = 0, index_bytes = 0;  // of one block
  };
  kernels::RecordFormat format = kernels::RecordFormat::kPacked;
  int head_dim = 0, index_dim = 0;
  std::vector<Source> sources;  // ascending layer

  static GlobalLayout make(const ModelConfig& config, kernels::RecordFormat format);
  int64_t block_bytes() const;
  double bytes_per_token() const { return static_cast<double>(block_bytes()) / kBlockPositions; }
};

class GlobalPool {
 public:
  // `num_blocks` counts block 0. kExhausted with both numbers if the memory is not there.
  static Result<GlobalPool> create(Device& device, const ModelConfig& config, kernels::RecordFormat format,
                                   int64_t num_blocks);

  const GlobalLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return memory_.bytes(); }
  // The cache of KV source layer `layer`.
  kernels::GlobalCache cache(int layer) const;

  // For a shared prefix whose last block is partly filled.
  void copy_block(Stream& stream, int32_t to, int32_t from);

  // The packed form of a block; kind and format of `header` are filled in. Waits for the stream.
  std::vector<std::byte> export_block(Stream& stream, int32_t block, PackedHeader header) const;
  // Fills a block. kCorrupt or kInvalid if the view is not a block of this layout; the block is then unspecified.
  Result<void> import_block(Stream& stream, int32_t block, const PackedView& view);

 private:
  std::byte* main(size_t source, int32_t block) const;
  std::byte* index(size_t source, int32_t block) const;

  GlobalLayout layout_;
  int64_t num_blocks_ = 0;
  DeviceBuffer memory_;
  std::vector<int64_t> main_offsets_, index_offsets_;  // of block 0, by source
};

}  // namespace deepinfer::cache
