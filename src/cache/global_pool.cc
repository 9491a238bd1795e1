#include "cache/global_pool.h"

#include <limits>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::cache {

GlobalLayout GlobalLayout::make(const ModelConfig& c, kernels::RecordFormat format) {
  GlobalLayout out{.format = format, .head_dim = c.head_dim, .index_dim = c.index_head_dim, .sources = {}};
  for (int layer : c.kv_source_layer_ids) {
    int ratio = c.compress_ratios[static_cast<size_t>(layer)];
    int64_t entries = kBlockPositions / ratio;
    out.sources.push_back({.layer = layer,
                           .ratio = ratio,
                           .main_bytes = entries * kernels::entry_record_bytes(format, c.head_dim),
                           .index_bytes = entries * kernels::index_record_bytes(format, c.index_head_dim)});
  }
  return out;
}

int64_t GlobalLayout::block_bytes() const {
  int64_t bytes = 0;
  for (const Source& s : sources) bytes += s.main_bytes + s.index_bytes;
  return bytes;
}

Result<GlobalPool> GlobalPool::create(Device& device, const ModelConfig& config, kernels::RecordFormat format,
                                      int64_t num_blocks) {
  if (num_blocks < 1 || num_blocks > std::numeric_limits<int32_t>::max())
    return fail(Code::kInvalid, "{} cache blocks: at least 1 and at most 2^31 - 1", num_blocks);
  GlobalPool pool;
  pool.layout_ = GlobalLayout::make(config, format);
  pool.num_blocks_ = num_blocks;
  int64_t at = 0;
  for (const auto& s : pool.layout_.sources) {
    pool.main_offsets_.push_back(at);
    pool.index_offsets_.push_back(at + num_blocks * s.main_bytes);
    at += num_blocks * (s.main_bytes + s.index_bytes);
  }
  DI_TRY(pool.memory_, device.allocate(at));
  return pool;
}

std::byte* GlobalPool::main(size_t source, int32_t block) const {
  DI_CHECK(block >= 0 && block < num_blocks_, "block {} of {}", block, num_blocks_);
  return static_cast<std::byte*>(memory_.data()) + main_offsets_[source] + block * layout_.sources[source].main_bytes;
}
std::byte* GlobalPool::index(size_t source, int32_t block) const {
  return static_cast<std::byte*>(memory_.data()) + index_offsets_[source] + block * layout_.sources[source].index_bytes;
}

kernels::GlobalCache GlobalPool::cache(int layer) const {
  for (size_t i = 0; i < layout_.sources.size(); ++i) {
    const auto& s = layout_.sources[i];
    if (s.layer != layer) continue;
    return {.main = main(i, 0),
            .index = index(i, 0),
            .main_block_bytes = s.main_bytes,
            .index_block_bytes = s.index_bytes,
            .ratio = s.ratio,
            .head_dim = layout_.head_dim,
            .index_dim = layout_.index_dim,
            .format = layout_.format};
  }
  DI_CHECK(false, "layer {} is no KV source", layer);
}

void GlobalPool::copy_block(Stream& stream, int32_t to, int32_t from) {
  DI_CHECK(to != 0 && to != from, "copy of block {} to {}", from, to);
  for (size_t i = 0; i < layout_.sources.size(); ++i) {
    stream.copy(main(i, to), main(i, from), layout_.sources[i].main_bytes);
    stream.copy(index(i, to), index(i, from), layout_.sources[i].index_bytes);
  }
}

std::vector<std::byte> GlobalPool::export_block(Stream& stream, int32_t block, PackedHeader header) const {
  header.kind = PackedKind::kBlock;
  header.format = layout_.format;
  std::vector<ComponentSpec> specs;
  for (const auto& s : layout_.sources) {
    specs.push_back({ComponentKind::kMain, s.layer, s.main_bytes});
    specs.push_back({ComponentKind::kIndex, s.layer, s.index_bytes});
  }
  PackedBuilder builder(header, specs);
  for (size_t i = 0; i < layout_.sources.size(); ++i) {
    stream.copy(builder.component(2 * i), main(i, block), specs[2 * i].bytes);
    stream.copy(builder.component(2 * i + 1), index(i, block), specs[2 * i + 1].bytes);
  }
  stream.synchronize();
  return std::move(builder).seal();
}

Result<void> GlobalPool::import_block(Stream& stream, int32_t block, const PackedView& view) {
  DI_CHECK(block != 0, "block 0 is never filled");
  if (view.header.kind != PackedKind::kBlock) return fail(Code::kInvalid, "packed: a state where a block is expected");
  if (view.header.format != layout_.format) return fail(Code::kInvalid, "packed: block records of another format");
  for (size_t i = 0; i < layout_.sources.size(); ++i) {
    const auto& s = layout_.sources[i];
    DI_TRY(auto entries, view.component(ComponentKind::kMain, s.layer, s.main_bytes));
    DI_TRY(auto keys, view.component(ComponentKind::kIndex, s.layer, s.index_bytes));
    stream.copy(main(i, block), entries.data(), s.main_bytes);
    stream.copy(index(i, block), keys.data(), s.index_bytes);
  }
  stream.synchronize();
  return {};
}

}  // namespace deepinfer::cache
