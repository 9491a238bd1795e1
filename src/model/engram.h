// Engram (model.md 4): n-gram rows of two large tables, gated into the streams.
//
//   prepare() computes all row numbers as soon as the ids are known and announces the table's pages; apply() gathers
//   them when its layer comes.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/streams.h"
#include "weights/engram_hash.h"

namespace deepinfer::model {

class Engram {
 public:
  // `compressed_ids`: token id -> compressed id, from the tokenizer's vocabulary.
  Engram(const ModelConfig& config, std::vector<int32_t> compressed_ids);

  // To be called once the weights are mapped.
  void open_tables(const std::vector<BlockWeights>& layers) const;
  void plan(Arena& arena, int64_t max_rows);
  void prepare(const Context& ctx, const std::vector<BlockWeights>& layers, const ForwardBatch& batch);
  void apply(const Context& ctx, const BlockWeights& w, Scratch& s, Streams& streams, const RowSet& rows, int layer);

 private:
  // Starts reading the pages of a large table that hold `rows`; the rank's part begins at row `first`.
  void announce(const kernels::Weight& table, std::span<const int64_t> rows, int64_t first) const;

  const ModelConfig& config_;
  EngramHash hash_;
  std::vector<int32_t> compressed_ids_;
  std::vector<int32_t> history_;        // context and ids of one sequence
  std::vector<int64_t> host_rows_;      // [layers][T, columns]
  std::vector<TensorView> table_rows_;  // a layer: [max_rows, columns] I64
};

}  // namespace deepinfer::model
