// Where the weights of a model go on a machine, and what follows: how many sequences fit, how fast decoding can be at
// best.
//
//   device memory   dense weights on every device (data parallel), routed experts spread over the devices,
//                   working space, then cache blocks and state slots
//   host memory     Engram tables (one copy a host), experts that do not fit the devices, or everything without devices
//   disk            what fits neither: Engram tables stay in the page cache's care
//
// Speeds are predictions: bytes over bandwidth and operations over peak, whichever is slower. Nothing is measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/config.h"

namespace deepinfer {

struct DeviceModel {
  const char* name;
  double memory_bytes;  // usable, as the driver reports it
  double bytes_per_second;
  double flops;  // dense FP8 (BF16 where there is no FP8)
};

struct Machine {
  int num_devices = 0;  // 0: processors only
  DeviceModel device{};
  double ram_bytes = 0;
};

// "8xH200", "H100", "cpu". kInvalid lists the known names.
Result<Machine> parse_machine(std::string_view devices, int64_t ram_bytes);

struct Placement {
  // One device; all zero without devices.
  double dense = 0, device_experts = 0, workspace = 0, device_cache = 0;
  // The host.
  double host_engram = 0, host_experts = 0, host_dense = 0, host_cache = 0;
  double disk_engram = 0;
  // At the given context: global KV and private state of one sequence, and how many fit on the machine.
  double sequence_bytes = 0;
  int64_t num_sequences = 0;
  // Decode, without drafts: seconds of a step with one sequence, and with as many as fit.
  double single_step_seconds = 0, full_step_seconds = 0;
};

// kExhausted: the weights alone do not fit; the message says by how much.
Result<Placement> place(const ModelConfig& config, const Machine& machine, int64_t context);

}  // namespace deepinfer
