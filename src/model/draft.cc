#include "model/draft.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::model {

void Draft::plan(Arena& arena, const Limits& limits, DType activation) {
  const ModelConfig& c = config_;
  const int64_t n = c.dspark_block_size, d = c.hidden_size;
  const int64_t ring = limits.ring > 0 ? limits.ring : c.default_ring_slots();
  const int64_t commit_rows = std::min(limits.max_rows, ring * limits.max_sequences);
  commit_rows_.plan(arena, c, commit_rows, limits.max_sequences);
  block_rows_.plan(arena, c, n * limits.max_sequences, limits.max_sequences);
  features_ = arena.matrix(activation, commit_rows, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d);
  main_ = arena.matrix(activation, commit_rows, d);
  folded_ = arena.matrix(activation, n * limits.max_sequences, d);
  markov_ = arena.matrix(activation, limits.max_sequences, c.dspark_markov_rank);
  ids_ = arena.array<int32_t>(n * limits.max_sequences);
  anchors_ = arena.array<int32_t>(limits.max_sequences);
  runs_.reserve(static_cast<size_t>(limits.max_sequences));
  host_ids_.reserve(static_cast<size_t>(n * limits.max_sequences));
}

void Draft::begin(const Context& ctx, const Frequencies& frequencies, std::span<const kernels::Run> runs) {
  const int ring = ctx.parts.states->plan().ring();
  commit_ranges_.clear();
  runs_.clear();
  int32_t at = 0;
  for (kernels::Run run : runs) {
    const int32_t dropped = std::max(0, run.num_rows - ring);
    append_range(commit_ranges_, {run.row_begin + dropped, run.num_rows - dropped});
    run.first_pos += dropped;
    run.num_rows -= dropped;
    run.row_begin = at;
    at += run.num_rows;
    runs_.push_back(run);
  }
  commit_rows_.assign(ctx.stream(), ctx.ops(), frequencies, runs_, {});
}

void Draft::tap(const Context& ctx, const Streams& streams, int target_index) {
  const int64_t d = config_.hidden_size;
  int64_t to = 0;
  for (const RowRange& range : commit_ranges_) {
    ctx.ops().stream_mean(ctx.stream(), {.streams = streams.all().row_range(range.begin, range.count),
                                         .m = config_.hc_mult,
                                         .mean = features_.row_range(to, range.count).col_range(target_index * d, d)});
    to += range.count;
  }
}

void Draft::commit(const Context& ctx, const DraftWeights& w, Scratch& s) {
  const int n = commit_rows_.num_rows();
  const TensorView main = head_rows(main_, n);
  ctx.sharded_linear(head_rows(features_, n), w.main_proj, main, ctx.shards.main_proj, ctx.shards.hidden_bounds);
  ctx.ops().rms_norm(ctx.stream(), {.x = main, .y = main, .gain = w.main_norm, .eps = ctx.eps()});
  for (size_t stage = 0; stage < w.stages.size(); ++stage)
    store_window_keys(ctx, w.stages[stage], s, commit_rows_, main, config_.num_hidden_layers + static_cast<int>(stage));
}

void Draft::propose(const Context& ctx, const NetworkWeights& w, const Frequencies& frequencies, Scratch& s,
                    Streams& streams, std::span<const DraftSequence> sequences, const Picker& pick,
                    const DraftOutput& out) {
  const ModelConfig& c = config_;
  const int n = c.dspark_block_size, num_sequences = static_cast<int>(sequences.size()), rows = n * num_sequences;
  DI_CHECK(!w.draft.stages.empty(), "the model was made without its draft module");
  runs_.clear();
  host_ids_.assign(static_cast<size_t>(rows), c.dspark_noise_token_id);
  for (int i = 0; i < num_sequences; ++i) {
    const DraftSequence& sequence = sequences[static_cast<size_t>(i)];
    host_ids_[static_cast<size_t>(i * n)] = sequence.anchor;
    runs_.push_back({.row_begin = i * n,
                     .num_rows = n,
                     .first_pos = sequence.last_pos + 1,
                     .slot = sequence.slot,
                     .window_floor = sequence.window_floor});
    ctx.stream().copy(anchors_ + i, &sequence.anchor, 4);
  }
  ctx.stream().copy(ids_, host_ids_.data(), rows * 4);
  block_rows_.assign(ctx.stream(), ctx.ops(), frequencies, runs_, {});
  streams.begin(ctx, rows);
  ctx.ops().embed(ctx.stream(),
                  {.ids = ids_, .table = w.embed, .row_begin = ctx.shards.vocab.begin, .streams = streams.all()});
  ctx.parts.comm->merge(ctx.stream(), streams.all());
  for (size_t stage = 0; stage < w.draft.stages.size(); ++stage)
    run_block(ctx, w.draft.stages[stage], s, streams, block_rows_, c.num_hidden_layers + static_cast<int>(stage),
              AttentionKind::kDraftBlock);
  const TensorView x = head_rows(s.x, rows), folded = head_rows(folded_, rows);
  streams.fold(ctx, w.draft.norm, x, folded);
  ctx.linear(x, w.head, out.logits.col_range(ctx.shards.vocab.begin, ctx.shards.vocab.size()), true);
  markov(ctx, w, num_sequences, folded, pick, out);
}

// Rows k, n + k, 2 n + k ... of the blocks: one a sequence.
static TensorView step_rows(const TensorView& view, int k, int n, int num_sequences) {
  TensorView rows = view.row_range(k, 1);
  rows.rows = num_sequences;
  rows.stride = view.stride * n;
  return rows;
}

void Draft::markov(const Context& ctx, const NetworkWeights& w, int num_sequences, const TensorView& hidden,
                   const Picker& pick, const DraftOutput& out) {
  const int n = config_.dspark_block_size;
  const parallel::Range vocab = ctx.shards.vocab;
  const TensorView embedding = head_rows(markov_, num_sequences);
  const int32_t* previous = anchors_;
  for (int k = 0; k < n; ++k) {
    ctx.ops().gather_rows(ctx.stream(),
                          {.table = w.draft.markov_embed, .row_begin = vocab.begin, .ids = previous, .out = embedding});
    ctx.parts.comm->merge(ctx.stream(), embedding);
    const TensorView logits = step_rows(out.logits, k, n, num_sequences), confidence = out.confidence.col_range(k, 1);
    const kernels::LinearJob correction{.weight = w.draft.markov_head,
                                        .y = logits.col_range(vocab.begin, vocab.size()),
                                        .keep_f32 = true,
                                        .accumulate = true};
    const kernels::LinearJob from_markov{
        .weight = w.draft.confidence_markov, .y = confidence, .keep_f32 = true, .accumulate = true};
    ctx.linear(step_rows(hidden, k, n, num_sequences), w.draft.confidence_hidden, confidence, true);
    ctx.linear(embedding, std::span(&from_markov, 1));
    ctx.linear(embedding, std::span(&correction, 1));
    ctx.parts.comm->all_gather(ctx.stream(), {logits, ctx.shards.vocab_bounds});
    auto* tokens = out.tokens.row<int32_t>(k);
    pick(k, logits, tokens);
    previous = tokens;
  }
}

}  // namespace deepinfer::model
