// The engine's start and end: memory, parts and threads.
#include <random>

#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/grammar_setup.h"
#include "text/compressed_vocabulary.h"
#include "weights/model_path.h"

namespace deepinfer::engine {
namespace {

std::string random_bytes(size_t n) {
  std::random_device device;
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(device());
  return bytes;
}

// Everything that makes cached rows of one engine unusable to another.
Result<cache::Digest> cache_namespace(const weights::Checkpoint& checkpoint, const EngineOptions& options,
                                      kernels::Ops& ops) {
  DI_TRY(std::string tokenizer, read_file(options.tokenizer + "/tokenizer.json"));
  std::string model = config_json(checkpoint.config());
  std::string index_path = checkpoint.directory() + "/model.safetensors.index.json";
  if (file_exists(index_path)) {
    DI_TRY(std::string index, read_file(index_path));
    model += index;
  }
  auto digest = [](const std::string& text) { return hex(sha256(std::as_bytes(std::span(text)))); };
  return cache::namespace_digest(
      {.model_digest = digest(model),
       .kv_format = fmt::format("{} {}", kernels::numerics_name(ops.numerics()), ops.description()),
       .tokenizer_digest = digest(tokenizer)});
}

}  // namespace

Result<std::unique_ptr<EngineImpl>> EngineImpl::create(const EngineOptions& options, const Settings& settings) {
  DI_TRY(const Backend backend, choose_backend(options.numerics, options.backend, settings.accelerator));
  return create(options, settings, backend);
}

Result<std::unique_ptr<EngineImpl>> EngineImpl::create(const EngineOptions& options, const Settings& settings,
                                                       const Backend& backend) {
  EngineOptions resolved = options;
  DI_TRY(resolved.model, weights::resolve_model(options.model));
  if (options.tokenizer.empty()) {
    resolved.tokenizer = resolved.model;
  } else {
    DI_TRY(resolved.tokenizer, weights::resolve_model(options.tokenizer));
  }
  DI_TRY(weights::Checkpoint checkpoint, weights::Checkpoint::open(resolved.model));
  DI_TRY(text::Tokenizer tokenizer, text::Tokenizer::load(resolved.tokenizer));
  std::unique_ptr<EngineImpl> engine(new EngineImpl(std::move(checkpoint), std::move(tokenizer), resolved, settings));
  DI_TRY_VOID(engine->build(backend));
  return engine;
}

EngineImpl::EngineImpl(weights::Checkpoint checkpoint, text::Tokenizer tokenizer, const EngineOptions& options,
                       const Settings& settings)
    : options_(options), settings_(settings), checkpoint_(std::move(checkpoint)), tokenizer_(std::move(tokenizer)) {}

Result<void> EngineImpl::build(const Backend& backend) {
  if (!config().engram_layer_ids.empty()) {
    text::CompressedVocabulary compressed = text::compress_vocabulary(tokenizer_);
    if (compressed.size != config().engram_compressed_vocab_size) {
      return fail(Code::kInvalid,
                  "the tokenizer gives {} compressed ids; config.json's engram_compressed_vocab_size is {}",
                  compressed.size, config().engram_compressed_vocab_size);
    }
    compressed_ids_ = std::move(compressed.ids);
  }
  int num_threads = options_.num_threads > 0 ? options_.num_threads : available_threads();
  DI_TRY(const std::unique_ptr<Device> device, backend.make_device());
  DI_TRY(int64_t placed_bytes,
         model::Model::weight_bytes(checkpoint_, {}, 0, *device, config().num_nextn_predict_layers > 0));
  const int64_t free_memory = device->free_memory();
  if (placed_bytes >= free_memory) {
    return fail(Code::kExhausted, "the weights take {} bytes of {} free on {}", placed_bytes, free_memory,
                device->description());
  }
  DI_TRY(plan_, plan_memory(config(), options_, settings_, *backend.make_ops(), num_threads, free_memory - placed_bytes,
                            backend.rows_a_step));
  for (const auto& spec : checkpoint_.specs()) {
    auto bytes = weights::slice_bytes(spec, checkpoint_.whole(spec));
    plan_.weight_bytes += bytes.codes + bytes.scales;
  }

  model::RanksOptions ranks{.plan = {},
                            .make_ops = backend.make_ops,
                            .make_device = backend.make_device,
                            .threads = num_threads,
                            .num_blocks = plan_.num_blocks + 1,
                            .num_slots = plan_.num_slots + 1,
                            .backtracking = static_cast<int>(plan_.replay.backtracking),
                            .model = {.limits = {.max_rows = plan_.max_rows,
                                                 .max_sequences = plan_.max_sequences,
                                                 .max_positions = config().max_position_embeddings},
                                      .with_draft = plan_.num_drafts > 0,
                                      .compressed_ids = compressed_ids_}};
  DI_TRY(ranks_, model::Ranks::create(checkpoint_, std::move(ranks)));
  model::Rank& rank = (*ranks_)[0];
  DI_TRY(windows_, cache::WindowPool::create(*rank.device, rank.states.plan(), plan_.window_halves, plan_.num_windows));
  DI_TRY(executor_, Executor::create({.model = rank.model.get(),
                                      .global = &rank.global,
                                      .states = &rank.states,
                                      .windows = &windows_,
                                      .device = rank.device.get(),
                                      .stream = rank.stream.get(),
                                      .compressed_ids = &compressed_ids_,
                                      .num_threads = num_threads,
                                      .max_rows = plan_.max_rows,
                                      .max_logit_rows = plan_.max_logit_rows,
                                      .max_sequences = plan_.max_sequences,
                                      .num_drafts = plan_.num_drafts,
                                      .replay = plan_.replay,
                                      .draft_quality = settings_.draft_quality}));

  const int64_t window = config().sliding_window;
  int boundary = config().boundary_layer() < 0 ? config().num_hidden_layers : config().boundary_layer();
  sched::SchedulerConfig sc{.max_rows = plan_.max_rows,
                            .max_logit_rows = plan_.max_logit_rows,
                            .max_running = plan_.max_sequences,
                            .num_slots = plan_.num_slots,
                            .num_drafts = plan_.num_drafts,
                            .max_length = plan_.max_model_len,
                            .max_step_us = options_.max_step_ms * 1000,
                            .bounded_replay = window,
                            .producer_replay = sched::deep_replay(window, boundary),
                            .full_replay = sched::deep_replay(window, config().num_hidden_layers),
                            .stores_all_layers = plan_.window_halves == cache::WindowHalves::kBoth};
  // Names are keyed anew in every process, so that nobody can compute one beforehand.
  std::string key = random_bytes(32);
  DI_TRY(cache::Digest name_space, cache_namespace(checkpoint_, options_, *rank.ops));
  namespace_digest_ = hex(name_space);
  ledger_ =
      std::make_unique<sched::IndexLedger>(static_cast<int32_t>(plan_.num_blocks), key, name_space, plan_.num_windows);
  scheduler_ = std::make_unique<sched::Scheduler>(sc, *ledger_);
  if (plan_.num_drafts > 0) {
    DI_TRY(drafts_, DraftControl::create(config(), settings_, plan_, rank.device->is_host()));
    scheduler_->set_draft_policy([this](auto queries, auto drafts) { return drafts_->plan(queries, drafts); });
  }
  stats_.blocks = stats_.blocks_available = plan_.num_blocks;
  stats_.max_sequences = plan_.max_sequences;
  stats_.state_slots = plan_.num_slots;
  stats_.drafted_by_position.resize(static_cast<size_t>(plan_.num_drafts));
  stats_.accepted_by_position.resize(static_cast<size_t>(plan_.num_drafts));
  compiler_ = std::make_unique<grammar::Compiler>(
      [this] { return grammar_vocabulary(tokenizer_, config().vocab_size, config().eos_token_id); },
      grammar::Compiler::Options{.num_threads = settings_.grammar_threads,
                                 .cache_bytes = settings_.grammar_cache_bytes,
                                 .timeout_s = settings_.grammar_timeout_s});
  schedule_thread_ = std::thread([this] { schedule_loop(); });
  execute_thread_ = std::thread([this] { execute_loop(); });
  return {};
}

EngineImpl::~EngineImpl() {
  compiler_.reset();  // requests that wait for it come in, refused
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  scheduling_.notify_all();
  executing_.notify_all();
  if (schedule_thread_.joinable()) schedule_thread_.join();
  if (execute_thread_.joinable()) execute_thread_.join();
}

std::string EngineImpl::description() const {
  std::string text = fmt::format("model      {}, {} layers, hidden {}, {} experts\n", checkpoint_.directory(),
                                 config().num_hidden_layers, config().hidden_size, config().n_routed_experts);
  model::Rank& rank = (*ranks_)[0];
  text += fmt::format("device     {}, {}, numerics {}\n", rank.device->description(), rank.ops->description(),
                      kernels::numerics_name(rank.ops->numerics()));
  text += plan_.description();
  for (const std::string& note : settings_.notes) text += note + "\n";
  return text;
}

}  // namespace deepinfer::engine
