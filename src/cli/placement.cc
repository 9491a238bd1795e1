#include "cli/placement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "cli/quantity.h"
#include "weights/footprint.h"

namespace deepinfer {
namespace {

// Vendors' data sheets: memory, bandwidth, dense FP8 peak (A100: BF16).
constexpr std::array<DeviceModel, 9> kDevices = {{{"H200", 150e9, 4.8e12, 1979e12},
                                                  {"H100", 85e9, 3.35e12, 1979e12},
                                                  {"H20", 102e9, 4.0e12, 296e12},
                                                  {"B200", 192e9, 8.0e12, 4500e12},
                                                  {"B300", 288e9, 8.0e12, 4500e12},
                                                  {"A100", 85e9, 2.04e12, 312e12},
                                                  {"L40S", 48e9, 0.864e12, 733e12},
                                                  {"RTX5090", 34e9, 1.79e12, 838e12},
                                                  {"RTX4090", 25e9, 1.01e12, 660e12}}};

// Activations, communication buffers, graphs, the library's own memory: a share of the device, at least 2 GiB.
constexpr double kWorkspaceShare = 0.06, kMinWorkspace = 2147483648.0;
// Of a device's memory, kept for caches where experts have to go to the host.
constexpr double kCacheShare = 0.2;
// Slots beyond the running sequences, for clones and hand-offs in flight (serving.md 2.2).
constexpr double kSlotReserve = 1.2;
// Processors: a two-socket server of the current kind, eight channels a socket.
constexpr double kHostBytesPerSecond = 400e9, kHostFlops = 10e12;
// Left to the operating system and the program.
constexpr double kHostReserve = 4294967296.0;

// The small term makes up for the rounding of sums that were meant to leave room for exactly one.
int64_t sequences_in(double bytes, double sequence_bytes) {
  return static_cast<int64_t>(bytes / sequence_bytes + 1e-6);
}

// Share of `num_experts` touched by at least one of `tokens` tokens that choose `k` at random.
double touched_share(int num_experts, int k, double tokens) {
  return 1 - std::pow(1 - static_cast<double>(k) / num_experts, tokens);
}

}  // namespace

Result<Machine> parse_machine(std::string_view devices, int64_t ram_bytes) {
  Machine m{.ram_bytes = static_cast<double>(ram_bytes)};
  if (devices == "cpu" || devices.empty()) return m;
  std::string_view name = devices;
  m.num_devices = 1;
  if (auto x = devices.find('x');
      x != std::string_view::npos && x > 0 && devices.find_first_not_of("0123456789") == x) {
    auto [end, ec] = std::from_chars(devices.data(), devices.data() + x, m.num_devices);
    if (ec != std::errc()) m.num_devices = 0;
    name = devices.substr(x + 1);
  }
  auto it = std::find_if(kDevices.begin(), kDevices.end(), [&](const DeviceModel& d) { return name == d.name; });
  if (it == kDevices.end() || m.num_devices < 1 || m.num_devices > 1024) {
    std::vector<std::string_view> names;
    for (const DeviceModel& d : kDevices) names.emplace_back(d.name);
    return fail(Code::kInvalid, "--devices is '{}', allowed are cpu or [1..1024 x] one of {}", devices,
                fmt::join(names, ", "));
  }
  m.device = *it;
  return m;
}

Result<Placement> place(const ModelConfig& c, const Machine& m, int64_t context) {
  const weights::Footprint f = weights::footprint(c);
  const double dense = static_cast<double>(f.dense + f.vision), experts = static_cast<double>(f.experts);
  const double tables = static_cast<double>(f.engram_tables), n = m.num_devices;
  Placement p;
  p.sequence_bytes = static_cast<double>(c.global_kv_bytes(context)) +
                     kSlotReserve * static_cast<double>(c.private_state_bytes(c.default_ring_slots()));
  double host_left = m.ram_bytes - kHostReserve;
  if (m.num_devices > 0) {
    p.dense = dense;
    p.workspace = std::max(kMinWorkspace, kWorkspaceShare * m.device.memory_bytes);
    // Room for caches comes before experts.
    const double rest = m.device.memory_bytes - p.dense - p.workspace;
    if (rest < p.sequence_bytes) {
      return fail(Code::kExhausted,
                  "one {} has {}; dense weights {}, workspace {} and one sequence of {} tokens {} do not fit",
                  m.device.name, format_bytes(m.device.memory_bytes), format_bytes(p.dense), format_bytes(p.workspace),
                  context, format_bytes(p.sequence_bytes));
    }
    p.device_experts =
        std::min(experts / n, rest - std::max(p.sequence_bytes, std::min(kCacheShare * m.device.memory_bytes, rest)));
    p.host_experts = experts - p.device_experts * n;
    p.device_cache = rest - p.device_experts;
    p.num_sequences = sequences_in(p.device_cache, p.sequence_bytes) * m.num_devices;
  } else {
    p.host_dense = dense;
    p.host_experts = experts;
  }
  host_left -= p.host_dense + p.host_experts;
  if (m.num_devices == 0) host_left -= p.sequence_bytes;
  if (host_left < 0) {
    return fail(Code::kExhausted,
                "host memory {} is short of {} for {} of weights outside the devices (Engram tables not counted)",
                format_bytes(m.ram_bytes), format_bytes(-host_left), format_bytes(p.host_dense + p.host_experts));
  }
  p.host_engram = std::min(tables, host_left);
  p.disk_engram = tables - p.host_engram;
  if (m.num_devices == 0) {
    p.host_cache = host_left - p.host_engram + p.sequence_bytes;
    p.num_sequences = sequences_in(p.host_cache, p.sequence_bytes);
  }
  // Decode steps.
  const weights::DecodeBytes d = weights::decode_bytes(c, context);
  const double flops = weights::decode_flops(c);
  const double on_host = experts > 0 ? p.host_experts / experts : 0;
  const double ranks = std::max(1.0, n);
  const double bandwidth = m.num_devices > 0 ? m.device.bytes_per_second : kHostBytesPerSecond;
  const double peak = m.num_devices > 0 ? m.device.flops : kHostFlops;
  auto step = [&](double sequences) {
    const double backbone =
        static_cast<double>(c.num_hidden_layers) * c.n_routed_experts *
        (static_cast<double>(d.experts) / (static_cast<double>(c.num_hidden_layers) * c.num_experts_per_tok));
    const double touched = backbone * touched_share(c.n_routed_experts, c.num_experts_per_tok, sequences);
    const double host_share = m.num_devices > 0 ? on_host : 0;
    const double local = std::ceil(sequences / ranks);
    const double device_bytes =
        static_cast<double>(d.dense) +
        touched * (1 - host_share) / std::min(ranks, std::max(1.0, sequences * c.num_experts_per_tok)) +
        local * static_cast<double>(d.cache);
    const double device_seconds = std::max(device_bytes / bandwidth, local * flops / peak);
    return device_seconds + touched * host_share / kHostBytesPerSecond;
  };
  p.single_step_seconds = step(1);
  p.full_step_seconds = step(static_cast<double>(std::max<int64_t>(1, p.num_sequences)));
  return p;
}

}  // namespace deepinfer
