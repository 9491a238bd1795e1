// deepinfer plan: what a machine can do with a model, from the configuration alone.

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/placement.h"
#include "cli/quantity.h"
#include "weights/footprint.h"
#include "weights/model_path.h"

namespace deepinfer {
namespace {

struct Options {
  std::string config, devices = "cpu", ram = "0", context = "0";
};

void line(const char* what, double bytes) {
  std::printf("  %-44s %12s\n", what, format_bytes(bytes).c_str());
}

void print_plan(const ModelConfig& c, const Machine& m, const Placement& p, int64_t context) {
  if (m.num_devices > 0) {
    std::printf("placement: %d x %s, dense weights on each, routed experts spread\n", m.num_devices, m.device.name);
    std::printf("each device, %s\n", format_bytes(m.device.memory_bytes).c_str());
    line("dense weights", p.dense);
    line("routed experts", p.device_experts);
    line("workspace", p.workspace);
    line("cache blocks and state slots", p.device_cache);
  } else {
    std::printf("placement: processors and host memory\n");
  }
  std::printf("host memory, %s\n", format_bytes(m.ram_bytes).c_str());
  if (p.host_dense > 0) line("dense weights", p.host_dense);
  if (p.host_experts > 0) line("routed experts", p.host_experts);
  line("Engram tables", p.host_engram);
  if (p.host_cache > 0) line("cache blocks and state slots", p.host_cache);
  if (p.disk_engram > 0) line("Engram tables left on disk", p.disk_engram);
  const weights::DecodeBytes d = weights::decode_bytes(c, context);
  std::printf("sequences of %lld tokens\n", static_cast<long long>(context));
  line("global KV a token", c.global_kv_bytes_per_token());
  line("private state of a sequence", static_cast<double>(c.private_state_bytes(c.default_ring_slots())));
  line("one sequence, slot reserve included", p.sequence_bytes);
  std::printf("  %-44s %12lld\n", "most sequences at once", static_cast<long long>(p.num_sequences));
  std::printf("decode of one token reads (without drafts)\n");
  line("dense weights", static_cast<double>(d.dense));
  line("routed experts", static_cast<double>(d.experts));
  line("Engram rows", static_cast<double>(d.engram));
  line("caches", static_cast<double>(d.cache));
  std::printf("predicted limits, not measured: bytes over bandwidth or operations over peak, without drafts\n");
  std::printf("  %-44s %12.1f tokens/s\n", "one sequence", 1 / p.single_step_seconds);
  if (p.num_sequences > 0) {
    std::printf("  %-44s %12.0f tokens/s\n", "all sequences together",
                static_cast<double>(p.num_sequences) / p.full_step_seconds);
  }
}

Result<void> plan(const Options& o) {
  std::error_code ec;
  std::string path = o.config;
  if (!std::filesystem::is_regular_file(path, ec)) {
    DI_TRY(std::string directory, weights::resolve_model(path));
    path = directory + "/config.json";
  }
  DI_TRY(std::string text, read_file(path));
  auto parsed = parse_config(text);
  if (!parsed) return fail(parsed.error().code, "{}: {}", path, parsed.error().message);
  DI_TRY(int64_t ram, parse_quantity("--ram", o.ram));
  DI_TRY(int64_t context, parse_quantity("--context", o.context));
  if (context == 0) context = parsed->max_position_embeddings;
  if (context > parsed->max_position_embeddings) {
    return fail(Code::kInvalid, "--context {} exceeds max_position_embeddings {}", context,
                parsed->max_position_embeddings);
  }
  DI_TRY(Machine machine, parse_machine(o.devices, ram));
  DI_TRY(Placement placement, place(*parsed, machine, context));
  print_plan(*parsed, machine, placement, context);
  return {};
}

}  // namespace

void add_plan(Command& app, int& exit_code) {
  auto o = std::make_shared<Options>();  // owned by the callback, filled by the parser
  Command cmd = app.subcommand("plan", "placement, memory and predicted limits of a machine; no weights needed");
  cmd.option("--config", o->config, "config.json, a model directory, or a hub name").required();
  cmd.option("--devices", o->devices, "for example 8xH200; cpu (default)");
  cmd.option("--ram", o->ram, "host memory, for example 1T").required();
  cmd.option("--context", o->context, "tokens of a sequence, for example 1M (default: the model's limit)");
  cmd.callback([o, &exit_code] {
    auto result = plan(*o);
    exit_code = result ? 0 : report(result.error());
  });
}

}  // namespace deepinfer
