// deepinfer inspect: what a checkpoint holds, and whether it is sound.

#include <cstdio>
#include <map>
#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/quantity.h"
#include "weights/checkpoint.h"
#include "weights/footprint.h"
#include "weights/model_path.h"
#include "weights/verify.h"

namespace deepinfer {
namespace {

using weights::Checkpoint;

struct Options {
  std::string model;
  bool verify = false, download = false;
  int threads = 0;
};

template <typename T>
std::string joined(const std::vector<T>& values) {
  return values.empty() ? "none" : fmt::format("{}", fmt::join(values, " "));
}

void print_config(const ModelConfig& c) {
  fmt::print("configuration\n");
  fmt::print("  {} layers of {} channels, {} heads of {}, window {}, context {}\n", c.num_hidden_layers, c.hidden_size,
             c.num_attention_heads, c.head_dim, c.sliding_window, c.max_position_embeddings);
  fmt::print("  experts: {} of {} a token, {} wide, one shared; {} streams\n", c.num_experts_per_tok,
             c.n_routed_experts, c.moe_intermediate_size, c.hc_mult);
  fmt::print("  ratios: {}\n", fmt::join(c.compress_ratios, " "));
  fmt::print("  KV sources: {}; index sources: {}; candidate source: {}\n", joined(c.kv_source_layer_ids),
             joined(c.index_source_layer_ids),
             c.candidate_source_layer_id < 0 ? "none" : fmt::format("{}", c.candidate_source_layer_id));
  fmt::print("  Engram layers: {}; draft stages: {}, blocks of {}, features of layers {}\n", joined(c.engram_layer_ids),
             c.num_nextn_predict_layers, c.dspark_block_size, joined(c.dspark_target_layer_ids));
  const std::string obstacle = c.truncation_obstacle();
  fmt::print("  prompt truncation: {}\n",
             obstacle.empty() ? fmt::format("from layer {} on", c.boundary_layer()) : "impossible, " + obstacle);
  if (!c.unknown_keys.empty()) fmt::print("  keys without meaning here: {}\n", joined(c.unknown_keys));
}

void print_tensors(const Checkpoint& checkpoint) {
  const auto& files = checkpoint.files();
  int64_t stored = 0;
  for (const auto& e : files.entries) stored += e.bytes;
  fmt::print("tensors\n  {} tensors, {} bytes in {} files\n", files.entries.size(), stored, files.paths.size());
  const auto parts = weights::bytes_by_part(checkpoint.specs());
  for (int i = 0; i < weights::kNumParts; ++i) {
    if (parts[static_cast<size_t>(i)] == 0) continue;
    fmt::print("  {:<26} {:>12}\n", part_name(static_cast<weights::Part>(i)),
               format_bytes(static_cast<double>(parts[static_cast<size_t>(i)])));
  }
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;  // name -> tensors, bytes with scales
  for (const auto& s : checkpoint.specs()) {
    auto& [count, bytes] = kinds[kind_name(s.kind)];
    ++count;
    bytes += s.bytes();
  }
  fmt::print("by kind\n");
  for (const auto& [name, sum] : kinds)
    fmt::print("  {:<8} {:>8} weights {:>12}\n", name, sum.first, format_bytes(static_cast<double>(sum.second)));
  if (checkpoint.config().has_vision()) {
    fmt::print("vision: {} tensors present, not used yet\n", checkpoint.vision_tensors().size());
  }
  const auto& unknown = checkpoint.unknown_tensors();
  if (!unknown.empty()) {
    const size_t shown = std::min<size_t>(unknown.size(), 8);
    fmt::print("unknown tensors: {} ({}{})\n", unknown.size(),
               fmt::join(unknown.begin(), unknown.begin() + static_cast<long>(shown), " "),
               shown < unknown.size() ? " ..." : "");
  }
}

void print_memory(const ModelConfig& c) {
  const weights::Footprint f = weights::footprint(c);
  const weights::DecodeBytes d = weights::decode_bytes(c, c.max_position_embeddings);
  auto line = [](const char* what, int64_t bytes) {
    fmt::print("  {:<44} {:>12}\n", what, format_bytes(static_cast<double>(bytes)));
  };
  fmt::print("memory\n");
  line("dense weights, wanted by every rank", f.dense);
  line("routed experts, spread over ranks", f.experts);
  line("Engram tables, one copy a host", f.engram_tables);
  fmt::print("  {:<44} {:>12}\n", "global KV a token", fmt::format("{} B", c.global_kv_bytes_per_token()));
  line("global KV at the longest context", c.global_kv_bytes(c.max_position_embeddings));
  line("private state of a sequence", c.private_state_bytes(c.default_ring_slots()));
  line("read by one token at the longest context", d.total());
}

Result<void> inspect(const Options& o) {
  DI_TRY(std::string directory,
         o.download ? weights::resolve_or_download_model(o.model) : weights::resolve_model(o.model));
  DI_TRY(Checkpoint checkpoint, Checkpoint::open(directory));
  fmt::print("model {}\n", directory);
  print_config(checkpoint.config());
  print_tensors(checkpoint);
  print_memory(checkpoint.config());
  if (!o.verify) return {};
  ThreadPool pool(o.threads > 0 ? o.threads : available_threads());
  DI_TRY(auto v, weights::verify(checkpoint, pool));
  fmt::print("verified: headers of {} files; {} scales in {} tensors, exponents {}..{}\n",
             checkpoint.files().paths.size(), v.num_scale_bytes, v.num_scale_tensors, v.min_scale - 127,
             v.max_scale - 127);
  if (v.known_bytes == weights::KnownBytes::kMatch) fmt::print("verified: known bytes of the published weights\n");
  if (v.known_bytes == weights::KnownBytes::kDiffer)
    fmt::print("note: the layout is the released one, the weights are not the published ones\n");
  return {};
}

}  // namespace

void add_inspect(Command& app, int& exit_code) {
  auto o = std::make_shared<Options>();  // owned by the callback, filled by the parser
  Command cmd = app.subcommand("inspect", "configuration, tensors, bytes by kind and memory of a checkpoint");
  cmd.option("--model", o->model, "model directory or hub name").required();
  cmd.flag("--verify", o->verify, "read every scale, and compare known bytes");
  cmd.flag("--download", o->download, "download a hub name that is absent");
  cmd.option("--threads", o->threads, "threads (default: all)");
  cmd.callback([o, &exit_code] {
    auto result = inspect(*o);
    exit_code = result ? 0 : report(result.error());
  });
}

}  // namespace deepinfer
