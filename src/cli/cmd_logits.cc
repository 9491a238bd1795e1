// deepinfer logits: logits of given token ids, with the intermediate values that comparisons need.
//
//   Sequences run one after the other in the same slot and blocks, truncation off. With --ranks every rank runs the
//   same calls and rank 0 writes.

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/json.h"
#include "base/log.h"
#include "base/math.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/logits_output.h"
#include "cli/saved_state.h"
#include "device/host_copy.h"
#include "engine/backend.h"
#include "model/ranks.h"
#include "text/compressed_vocabulary.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

constexpr int64_t kDefaultChunk = 256;  // rows; keeps the logits of a chunk at 132 MB with 129,280 words

struct Options {
  std::string model, ids, out, numerics = "fast", backend, save_state, load_state;
  int64_t chunk = 0, decode_from = -1;
  int threads = 0, ranks = 1;
  bool hidden = false, trace = false, last = false;
};

struct Sequence {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_image;  // empty: all text
  LoadedState state;              // with --load-state
  int64_t first = 0;              // first position to compute
};

Result<int64_t> to_integer(const json::value& v, const std::string& where) {
  if (!v.is_int64()) return fail(Code::kInvalid, "{}: not an integer", where);
  return v.as_int64();
}

Result<void> read_ids(const json::value& v, const ModelConfig& config, int index, Sequence& out) {
  if (!v.is_array()) return fail(Code::kInvalid, "sequence {}: ids are not a list", index);
  for (const json::value& element : v.as_array()) {
    DI_TRY(int64_t id, to_integer(element, fmt::format("sequence {}: id at position {}", index, out.ids.size())));
    if (id < 0 || id >= config.vocab_size)
      return fail(Code::kInvalid, "sequence {}: id {} at position {} is outside the vocabulary of {}", index, id,
                  out.ids.size(), config.vocab_size);
    out.ids.push_back(static_cast<int32_t>(id));
  }
  if (out.ids.empty()) return fail(Code::kInvalid, "sequence {} is empty", index);
  if (static_cast<int64_t>(out.ids.size()) > config.max_position_embeddings)
    return fail(Code::kInvalid, "sequence {} has {} tokens, the context length is {}", index, out.ids.size(),
                config.max_position_embeddings);
  return {};
}

Result<void> read_image(const json::value& v, int index, Sequence& out) {
  if (!v.is_array()) return fail(Code::kInvalid, "sequence {}: image is not a list of [from, to)", index);
  const auto length = static_cast<int64_t>(out.ids.size());
  out.is_image.assign(out.ids.size(), 0);
  for (const json::value& span : v.as_array()) {
    if (!span.is_array() || span.as_array().size() != 2)
      return fail(Code::kInvalid, "sequence {}: image span is not [from, to)", index);
    DI_TRY(int64_t from, to_integer(span.as_array()[0], fmt::format("sequence {}: image span", index)));
    DI_TRY(int64_t to, to_integer(span.as_array()[1], fmt::format("sequence {}: image span", index)));
    if (from < 0 || from > to || to > length)
      return fail(Code::kInvalid, "sequence {}: image span [{}, {}) is outside its {} positions", index, from, to,
                  length);
    std::fill(out.is_image.begin() + from, out.is_image.begin() + to, uint8_t{1});
  }
  return {};
}

Result<std::vector<Sequence>> read_sequences(const std::string& path, const ModelConfig& config) {
  DI_TRY(json::value root, json::parse_file(path));
  if (!root.is_array() || root.as_array().empty())
    return fail(Code::kInvalid, "{}: expected a list with one entry a sequence", path);
  std::vector<Sequence> out;
  for (const json::value& entry : root.as_array()) {
    const int index = static_cast<int>(out.size());
    Sequence& sequence = out.emplace_back();
    if (!entry.is_object()) {
      DI_TRY_VOID(read_ids(entry, config, index, sequence));
      continue;
    }
    const json::value* ids = entry.as_object().if_contains("ids");
    if (ids == nullptr) return fail(Code::kInvalid, "sequence {} has no ids", index);
    DI_TRY_VOID(read_ids(*ids, config, index, sequence));
    if (const json::value* image = entry.as_object().if_contains("image"))
      DI_TRY_VOID(read_image(*image, index, sequence));
  }
  return out;
}

// One rank's side of the work.
class Runner {
 public:
  Runner(const Options& options, model::Rank& rank, const std::vector<int32_t>& compressed_ids, int64_t chunk)
      : options_(options), rank_(rank), config_(rank.model->config()), compressed_ids_(compressed_ids), chunk_(chunk) {
    blocks_.resize(static_cast<size_t>(rank.global.num_blocks() - 1));
    std::iota(blocks_.begin(), blocks_.end(), 1);  // block 0 belongs to nobody
  }

  // Memory of the results; before run.
  Result<void> allocate() {
    const int n = config_.dspark_block_size;
    auto plan = [&](Arena& arena) {
      logits_ = arena.matrix(DType::kF32, std::max<int64_t>(chunk_, n), config_.vocab_size);
      draft_ = {{}, arena.matrix(DType::kI32, n, 1), arena.matrix(DType::kF32, 1, n)};
    };
    Arena counting;
    plan(counting);
    DI_TRY(memory_, rank_.device->allocate(counting.peak()));
    Arena arena(memory_.data(), memory_.bytes());
    plan(arena);
    return {};
  }

  // `output`: rank 0 only.
  Result<void> run(int index, const Sequence& sequence, LogitsOutput* output) {
    const auto length = static_cast<int64_t>(sequence.ids.size());
    rank_.states.hand_out(*rank_.stream, kSlot);
    context_.clear();
    if (sequence.first > 0) {
      DI_TRY_VOID(restore(options_.load_state, index, sequence.state, rank_, sequence.ids, blocks_, kSlot));
      context_ = sequence.state.context;
    }
    for (int64_t pos = sequence.first; pos < length;) {
      const bool is_decode = options_.decode_from >= 0 && pos >= options_.decode_from;
      int64_t end = std::min(length, pos + (is_decode ? 1 : chunk_));
      if (!is_decode && options_.decode_from > pos) end = std::min(end, options_.decode_from);
      if (output != nullptr) output->begin_chunk(index, sequence.first, length, pos);
      forward(sequence, pos, end, output);
      pos = end;
    }
    if (rank_.model->has_draft()) propose(length - 1, output);
    if (output == nullptr || options_.save_state.empty()) return {};
    return save_sequence(options_.save_state, rank_,
                         {.index = index, .ids = sequence.ids, .context = context_, .blocks = blocks_, .slot = kSlot});
  }

 private:
  static constexpr int32_t kSlot = 0;

  void forward(const Sequence& sequence, int64_t begin, int64_t end, LogitsOutput* output) {
    const auto rows = static_cast<size_t>(end - begin), from = static_cast<size_t>(begin);
    const model::SequenceRows run{.slot = kSlot,
                                  .block_table = blocks_.data(),
                                  .first_pos = begin,
                                  .num_rows = static_cast<int32_t>(rows),
                                  .context = context_};
    logit_rows_.resize(!options_.last ? rows : end == static_cast<int64_t>(sequence.ids.size()) ? 1 : 0);
    std::iota(logit_rows_.begin(), logit_rows_.end(), static_cast<int32_t>(rows - logit_rows_.size()));
    model::ForwardBatch batch;
    batch.sequences = {&run, 1};
    batch.ids = std::span(sequence.ids).subspan(from, rows);
    if (!sequence.is_image.empty()) batch.is_image = std::span(sequence.is_image).subspan(from, rows);
    batch.logit_rows = logit_rows_;
    if (output != nullptr && output->observes()) batch.observer = output;
    const TensorView device_logits = logits_.row_range(0, static_cast<int64_t>(logit_rows_.size()));
    rank_.model->forward(batch, device_logits);
    extend_context(sequence, begin, end);
    if (logit_rows_.empty()) return;
    const HostCopy copy(*rank_.device, *rank_.stream, device_logits);
    const TensorView& logits = copy.view();
    if (output != nullptr) output->on_logits(logits);
    const float* last = logits.f32(logits.rows - 1);
    greedy_ = static_cast<int32_t>(std::max_element(last, last + config_.vocab_size) - last);
  }

  // Keeps the compressed ids of the last positions: the n-gram context of the next chunk.
  void extend_context(const Sequence& sequence, int64_t begin, int64_t end) {
    if (config_.engram_layer_ids.empty()) return;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const bool is_dead = !sequence.is_image.empty() && sequence.is_image[i] != 0;
      context_.push_back(is_dead ? kEngramDead : compressed_ids_[static_cast<size_t>(sequence.ids[i])]);
    }
    const auto wanted = static_cast<size_t>(config_.engram_max_ngram_size - 1);
    if (context_.size() > wanted) context_.erase(context_.begin(), context_.end() - static_cast<int64_t>(wanted));
  }

  void propose(int64_t last_pos, LogitsOutput* output) {
    draft_.logits = logits_.row_range(0, config_.dspark_block_size);
    const model::DraftSequence sequence{.slot = kSlot, .last_pos = last_pos, .anchor = greedy_};
    rank_.model->propose(
        {&sequence, 1},
        [&](int, const TensorView& logits, int32_t* picked) {
          const HostCopy copy(*rank_.device, *rank_.stream, logits);
          const float* row = copy.view().f32(0);
          const auto best = static_cast<int32_t>(std::max_element(row, row + logits.cols) - row);
          rank_.stream->copy(picked, &best, 4);
        },
        draft_);
    if (output == nullptr) return;
    const HostCopy tokens(*rank_.device, *rank_.stream, draft_.tokens);
    const HostCopy confidence(*rank_.device, *rank_.stream, draft_.confidence);
    output->on_draft(tokens.view(), confidence.view());
  }

  const Options& options_;
  model::Rank& rank_;
  const ModelConfig& config_;
  const std::vector<int32_t>& compressed_ids_;
  int64_t chunk_;
  DeviceBuffer memory_;
  TensorView logits_;
  model::DraftOutput draft_;
  std::vector<int32_t> blocks_, logit_rows_, context_;
  int32_t greedy_ = 0;
};

Result<void> run(const Options& options) {
  DI_TRY(Backend backend, choose_backend(options.numerics, options.backend));
  DI_TRY(auto checkpoint, weights::Checkpoint::open(options.model));
  const ModelConfig& config = checkpoint.config();
  DI_TRY(auto sequences, read_sequences(options.ids, config));
  std::vector<int32_t> compressed_ids;
  if (!config.engram_layer_ids.empty()) {
    DI_TRY(auto tokenizer, text::Tokenizer::load(options.model));
    compressed_ids = text::compress_vocabulary(tokenizer).ids;
  }
  const bool with_draft = config.num_nextn_predict_layers > 0;
  if (options.last && (options.hidden || options.trace))
    return fail(Code::kInvalid, "--last leaves out rows that --hidden and --trace show: give only one of them");
  LogitsOutput output(
      config,
      {.draft = with_draft, .hidden = options.hidden, .trace = options.trace, .last_logits_only = options.last});
  int64_t longest = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = sequences[i];
    if (!options.load_state.empty()) {
      const auto name_space = state_namespace(config, model::record_format(backend.numerics));
      DI_TRY(s.state, load_state(options.load_state, static_cast<int>(i), name_space, s.ids));
      s.first = s.state.view.header.end_pos;
    }
    output.declare(static_cast<int>(i), s.first, static_cast<int64_t>(s.ids.size()));
    longest = std::max(longest, static_cast<int64_t>(s.ids.size()));
  }
  if (!options.save_state.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.save_state, error);
    if (error) return fail(Code::kIo, "{}: {}", options.save_state, error.message());
  }
  const int64_t chunk = std::min(longest, options.chunk > 0 ? options.chunk : kDefaultChunk);
  DI_TRY(auto ranks,
         model::Ranks::create(checkpoint,
                              {.plan = parallel::ParallelPlan::tensor(options.ranks),
                               .make_ops = backend.make_ops,
                               .make_device = backend.make_device,
                               .threads = options.threads,
                               .num_blocks = 1 + ceil_div(longest, cache::kBlockPositions),
                               .num_slots = 1,
                               .model = {.limits = {.max_rows = chunk, .max_sequences = 1, .max_positions = longest},
                                         .with_draft = with_draft,
                                         .compressed_ids = compressed_ids}}));
  DI_TRY_VOID(output.create(options.out));
  std::vector<Result<void>> status(static_cast<size_t>(ranks->size()));
  ranks->run([&](model::Rank& rank) {
    Runner runner(options, rank, compressed_ids, chunk);
    if (auto done = runner.allocate(); !done) {
      status[static_cast<size_t>(rank.id)] = done;
      return;
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      // A rank that cannot save goes on, since the others wait for it; states are checked before anybody starts.
      auto done = runner.run(static_cast<int>(i), sequences[i], rank.id == 0 ? &output : nullptr);
      if (!done) status[static_cast<size_t>(rank.id)] = done;
    }
  });
  for (const auto& s : status) DI_TRY_VOID(s);
  for (int r = 0; r < ranks->size(); ++r)
    spdlog::debug("rank {}: {} bytes of weights, {}", r, (*ranks)[r].checkpoint.delivered_bytes(),
                  (*ranks)[r].ops->description());
  return output.finish();
}

}  // namespace

void add_logits(Command& app, int& exit_code) {
  auto options = std::make_shared<Options>();  // owners: the parser's bindings and the callback
  Command command = app.subcommand("logits", "logits, drafts and intermediate values of given token ids");
  command.option("--model", options->model, "checkpoint directory").required();
  command.option("--ids", options->ids, "JSON: [[id]] or [{\"ids\": [id], \"image\": [[from, to)]}]").required();
  command.option("--out", options->out, "safetensors file to write").required();
  command.option("--numerics", options->numerics, "fp32, qat, vendor or fast");
  command.option("--backend", options->backend, "ref, cpu or cuda");
  command.option("--chunk", options->chunk, "prefill in chunks of this many rows").positive();
  command.option("--decode-from", options->decode_from, "one token at a time from this position on").non_negative();
  command.option("--threads", options->threads, "of all ranks together; default: all").positive();
  command.option("--ranks", options->ranks, "tensor-parallel ranks inside the process").positive();
  command.flag("--hidden", options->hidden, "also the streams and fold weights that enter each layer");
  command.flag("--trace", options->trace, "also chosen and candidate entries and Engram rows");
  command.flag("--last", options->last, "logits of the last position only, as generation asks for them");
  command.option("--save-state", options->save_state, "folder for the caches after the last position");
  command.option("--load-state", options->load_state, "folder of an earlier run on the beginnings of the sequences");
  command.callback([options, &exit_code] {
    try {
      if (auto done = run(*options); !done) exit_code = report(done.error());
    } catch (const DeviceError& e) {
      exit_code = report(Error{Code::kInternal, e.what()});
    }
  });
}

}  // namespace deepinfer
