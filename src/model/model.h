// The network of one rank: forward passes over a batch of sequences, and draft proposals.
//
//   forward = producer, then consumer.
//     producer   layers before the boundary, and the key side of the boundary layer (norm, compressor, index keys): all
//                rows
//     consumer   the boundary layer's queries and everything after it, draft commit and head: kept rows (batch.h); in
//                the last layer all rows leave their keys, and only wanted ones, from a sequence's first row of logits
//                on, go further
//   Without a boundary (ModelConfig::boundary_layer() < 0) the producer only embeds, and all layers are consumers.
//
//   On a device that can, a step of few rows that all want logits (decoding) is recorded once for its number of rows,
//   rounded up to a tier, and then repeated with one launch. Recorded or not, the bits are the same.
//
//   Caches (window rings, tails, global blocks, draft windows) are extended in place; a row's result depends on its own
//   sequence only, never on the batch, the chunk borders or the number of ranks.
//
// Owned by the thread that drives the rank's stream. Nothing is allocated after create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/batch.h"
#include "model/draft.h"
#include "model/engram.h"
#include "weights/checkpoint.h"

namespace deepinfer::model {

// How caches store their records under a numerics.
inline kernels::RecordFormat record_format(kernels::Numerics n) {
  return kernels::rounds_caches(n) ? kernels::RecordFormat::kPacked : kernels::RecordFormat::kF32;
}

struct ModelOptions {
  Limits limits;
  bool with_draft = true;
  std::vector<int32_t> compressed_ids;  // token id -> compressed id; may be empty if the model has no Engram
};

class Model {
 public:
  // Maps the rank's weights (the checkpoint's files must stay open: keep the handle) and plans all scratch. kInvalid if
  // the compressed vocabulary is not that of the configuration, kExhausted if the scratch does not fit.
  static Result<std::unique_ptr<Model>> create(const weights::Checkpoint& checkpoint,
                                               const parallel::ParallelPlan& plan, int rank, const RankParts& parts,
                                               ModelOptions options);
  // Bytes of the device's memory that the weights take; 0 where kernels read them in the mapped files.
  static Result<int64_t> weight_bytes(const weights::Checkpoint& checkpoint, const parallel::ParallelPlan& plan,
                                      int rank, const Device& device, bool with_draft);
  // Bytes of scratch and workspace that create would allocate.
  static int64_t scratch_bytes(const ModelConfig& config, const parallel::ParallelPlan& plan, int rank,
                               kernels::Ops& ops, const Limits& limits, int num_threads);

  const ModelConfig& config() const { return config_; }
  bool has_draft() const { return !weights_.draft.stages.empty(); }

  // logits [number of logit_rows, V] F32, in their order.
  void forward(const ForwardBatch& batch, const TensorView& logits);
  void producer(const ForwardBatch& batch);
  // Continues the rows that the last producer() left, with the same batch.
  void consumer(const ForwardBatch& batch, const TensorView& logits);

  // Proposes dspark_block_size tokens for each sequence; `pick` is called once a draft position, on every rank alike.
  void propose(std::span<const DraftSequence> sequences, const Picker& pick, const DraftOutput& out);

 private:
  Model(const ModelConfig& config, parallel::Shards shards, const RankParts& parts, const Limits& limits,
        std::vector<int32_t> compressed_ids);
  void plan(Arena& arena);
  kernels::Ops::WorkspaceShape workspace_shape() const;

  void prepare(const ForwardBatch& batch, int64_t recorded_positions);
  void produce(const ForwardBatch& batch);
  int tier_of(const ForwardBatch& batch) const;
  void forward_recorded(const ForwardBatch& batch, int tier, const TensorView& logits);
  void run_layers(const ForwardBatch& batch, const RowSet& rows, int begin, int end);
  bool may_narrow() const;
  void narrow(int layer);
  bool is_tapped_by_producer() const;
  void tap(int layer);
  void observe(const ForwardBatch& batch, int layer);
  void split_rows(const ForwardBatch& batch);
  int64_t table_length() const;
  std::span<const kernels::Run> tapped_runs() const { return is_tapped_by_producer() ? all_.runs() : kept_.runs(); }
  void head(const ForwardBatch& batch, const TensorView& logits);

  const ModelConfig config_;
  const parallel::Shards shards_;
  const RankParts parts_;
  const Limits limits_;
  const int boundary_;
  Context ctx_;
  NetworkWeights weights_;
  Frequencies frequencies_;

  WeightPlace place_;  // of the weights, where a device needs them in its own memory
  DeviceBuffer memory_, workspace_;
  Scratch scratch_;
  Streams streams_;
  Region all_, kept_, wanted_;
  std::unique_ptr<Engram> engram_;
  Draft draft_;
  int32_t* ids_ = nullptr;
  int32_t* tables_ = nullptr;  // [max_sequences][blocks of max_positions]

  // Of the batch in progress.
  std::vector<RowRange> logit_ranges_;  // in the numbering of the batch
  std::vector<RowRange> ranges_;        // to be kept, in that of the rows at hand

  struct Recorded {
    int tier = 0;
    const void* logits = nullptr;
    std::unique_ptr<Graph> graph;  // nullptr: seen once, to be recorded when it comes again
  };
  std::vector<Recorded> recorded_;
  std::vector<SequenceRows> padded_sequences_;
  std::vector<int32_t> padded_ids_, padded_logit_rows_, padding_blocks_;
};

}  // namespace deepinfer::model
