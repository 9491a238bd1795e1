#include "model/engram.h"

#include "base/check.h"
#include "base/file.h"
#include "device/host_copy.h"

namespace deepinfer::model {

namespace {

// A smaller table stays in the page cache; asking for its pages would cost more than it brings.
constexpr int64_t kLargeTableBytes = int64_t{1} << 30;

bool is_large(const kernels::Weight& table) {
  return table.rows * table.cols >= kLargeTableBytes;
}

}  // namespace

Engram::Engram(const ModelConfig& config, std::vector<int32_t> compressed_ids)
    : config_(config),
      hash_(config, compressed_ids[static_cast<size_t>(config.engram_pad_token_id)]),
      compressed_ids_(std::move(compressed_ids)) {}

void Engram::plan(Arena& arena, int64_t max_rows) {
  table_rows_.clear();
  for (size_t i = 0; i < config_.engram_layer_ids.size(); ++i)
    table_rows_.push_back(arena.matrix(DType::kI64, max_rows, hash_.columns()));
  history_.reserve(static_cast<size_t>(max_rows + config_.engram_max_ngram_size));
  host_rows_.reserve(table_rows_.size() * static_cast<size_t>(max_rows * hash_.columns()));
}

void Engram::open_tables(const std::vector<BlockWeights>& layers) const {
  for (int layer : config_.engram_layer_ids) {
    const kernels::Weight& table = layers[static_cast<size_t>(layer)].engram_table;
    if (!is_large(table)) continue;
    advise(table.codes, table.rows * table.cols, MappedAccess::kRandom);
    advise(table.scales, table.rows * (table.cols / 32), MappedAccess::kRandom);
  }
}

void Engram::announce(const kernels::Weight& table, std::span<const int64_t> rows, int64_t first) const {
  if (!is_large(table)) return;
  const int64_t scale_bytes = table.cols / 32;
  for (int64_t row : rows) {
    const int64_t at = row - first;
    if (at < 0 || at >= table.rows) continue;
    advise(static_cast<const uint8_t*>(table.codes) + at * table.cols, table.cols, MappedAccess::kSoon);
    advise(table.scales + at * scale_bytes, scale_bytes, MappedAccess::kSoon);
  }
}

void Engram::prepare(const Context& ctx, const std::vector<BlockWeights>& layers, const ForwardBatch& batch) {
  const int64_t columns = hash_.columns(), num_rows = static_cast<int64_t>(batch.ids.size());
  host_rows_.resize(table_rows_.size() * static_cast<size_t>(num_rows * columns));
  int64_t row = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    history_.assign(sequence.context.begin(), sequence.context.end());
    for (int64_t i = row; i < row + sequence.num_rows; ++i) {
      const int32_t id = batch.ids[static_cast<size_t>(i)];
      const bool is_dead = id < 0 || (!batch.is_image.empty() && batch.is_image[static_cast<size_t>(i)] != 0);
      history_.push_back(is_dead ? kEngramDead : compressed_ids_[static_cast<size_t>(id)]);
    }
    for (size_t e = 0; e < table_rows_.size(); ++e) {
      std::span<int64_t> out(host_rows_.data() + (static_cast<int64_t>(e) * num_rows + row) * columns,
                             static_cast<size_t>(sequence.num_rows * columns));
      hash_.rows(static_cast<int>(e), history_, sequence.num_rows, out);
    }
    row += sequence.num_rows;
  }
  for (size_t e = 0; e < table_rows_.size(); ++e) {
    const int64_t* rows = host_rows_.data() + static_cast<int64_t>(e) * num_rows * columns;
    ctx.stream().copy(table_rows_[e].data, rows, num_rows * columns * 8);
    const kernels::Weight& table = layers[static_cast<size_t>(config_.engram_layer_ids[e])].engram_table;
    if (ctx.parts.device->is_host())
      announce(table, {rows, static_cast<size_t>(num_rows * columns)}, ctx.shards.engram_table[e].begin);
    if (batch.observer == nullptr) continue;
    const HostCopy copy(*ctx.parts.device, ctx.stream(), head_rows(table_rows_[e], num_rows));
    batch.observer->on_engram_rows(static_cast<int>(e), copy.view());
  }
}

void Engram::apply(const Context& ctx, const BlockWeights& w, Scratch& s, Streams& streams, const RowSet& rows,
                   int layer) {
  const auto index = static_cast<size_t>(config_.engram_index(layer));
  const int n = rows.num_rows();
  const TensorView gathered = head_rows(s.engram.rows, n), kv = head_rows(s.engram.kv, n);
  const parallel::Range shard = ctx.shards.engram_table[index];
  ctx.ops().prefetch(ctx.stream(), w.engram_wkv);
  ctx.ops().engram_gather(
      ctx.stream(),
      {.rows = head_rows(table_rows_[index], n), .table = w.engram_table, .row_begin = shard.begin, .out = gathered});
  if (shard.size() < config_.engram_num_embeddings[index]) ctx.parts.comm->merge(ctx.stream(), gathered);
  ctx.sharded_linear(gathered, w.engram_wkv, kv, ctx.shards.engram_rows_out, ctx.shards.engram_bounds);
  streams.flush(ctx);
  ctx.ops().engram_gate(ctx.stream(), {.streams = streams.all(),
                                       .kv = kv,
                                       .q_weight = w.engram_q,
                                       .k_weight = w.engram_k,
                                       .is_image = rows.batch().is_image,
                                       .m = config_.hc_mult,
                                       .eps = ctx.eps()});
}

}  // namespace deepinfer::model
