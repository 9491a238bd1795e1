// The tensors of one rank as the kernels take them: pointers into the mapped checkpoint, or into a device's memory.
//
//   Products are cut by output rows (parallel::Shards); what is small is whole on every rank: norms, mHC sites, router,
//   wq_a, wkv, compressor, indexer, confidence.
#pragma once

#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/ops.h"
#include "parallel/plan.h"
#include "weights/checkpoint.h"

namespace deepinfer::model {

struct SiteWeights {
  const float* fn = nullptr;     // [(2 + m) m, m d]
  const float* base = nullptr;   // [(2 + m) m]
  const float* scale = nullptr;  // [3]
};

// Empty weights and null pointers: the layer has no such part.
struct BlockWeights {
  SiteWeights attn_site, ffn_site;
  const bf16 *attn_norm = nullptr, *ffn_norm = nullptr;  // [d]

  kernels::Weight wq_a, wkv;  // [q rank, d], [D, d]
  kernels::Weight wq_b;       // [this rank's heads x D, q rank]
  kernels::Weight wo_a;       // [this rank's groups x o rank, heads of a group x D]
  kernels::Weight wo_b;       // [this rank's rows of d, groups x o rank]
  const bf16 *q_norm = nullptr, *kv_norm = nullptr;
  const float* sink = nullptr;  // [this rank's heads]

  kernels::Weight compressor_kv, compressor_gate;  // [D, d]; gate for ratio 2
  const bf16* compressor_norm = nullptr;
  kernels::Weight index_k;  // [I, D]
  const bf16* index_k_norm = nullptr;
  kernels::Weight index_q, index_heads;  // [heads I, q rank], [heads, d]

  kernels::Weight gate;  // [E, d]
  const float *bias = nullptr, *bias_image = nullptr;
  std::vector<kernels::ExpertWeights> experts;             // this rank's
  const kernels::ExpertWeights* device_experts = nullptr;  // the same in the device's memory
  kernels::ExpertWeights shared;                           // w1, w3: this rank's width; w2: this rank's rows of d

  kernels::Weight engram_table, engram_wkv;             // this rank's rows
  const bf16 *engram_q = nullptr, *engram_k = nullptr;  // [m, d]
};

struct DraftWeights {
  kernels::Weight main_proj;  // [this rank's rows of d, targets d]
  const bf16 *main_norm = nullptr, *norm = nullptr;
  kernels::Weight markov_embed, markov_head;             // this rank's vocabulary rows
  kernels::Weight confidence_hidden, confidence_markov;  // the two parts of the one row of confidence_head.proj
  std::vector<BlockWeights> stages;                      // empty: no draft module
};

struct NetworkWeights {
  kernels::Weight embed, head;  // this rank's vocabulary rows
  const bf16* norm = nullptr;
  std::vector<BlockWeights> layers;
  DraftWeights draft;
};

// Where bytes of the checkpoint go: nowhere on a host, else to planned memory of the device. Large tables that are
// read a few rows at a time stay in host memory that the device can read.
class WeightPlace {
 public:
  // Only counts, until memory is there.
  WeightPlace() = default;
  // Memory of the counted size.
  Result<void> allocate(Device& device, Stream& stream);

  const void* put(const void* bytes, int64_t size, bool is_table = false);
  int64_t device_bytes() const { return device_bytes_; }
  int64_t host_bytes() const { return host_bytes_; }

 private:
  Stream* stream_ = nullptr;
  DeviceBuffer device_, host_;
  int64_t device_bytes_ = 0, host_bytes_ = 0;
};

// Maps this rank's bytes and nothing else. The checkpoint's mapping must outlive the result; with a place, the place.
Result<NetworkWeights> map_weights(const weights::Checkpoint& checkpoint, const parallel::Shards& shards,
                                   bool with_draft, WeightPlace* place = nullptr);

}  // namespace deepinfer::model
