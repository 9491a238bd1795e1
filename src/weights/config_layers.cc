// What the lists of the configuration say about single layers, and the sizes of the caches that follow from them.

#include <algorithm>

#include "weights/config.h"

namespace deepinfer {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::binary_search(list.begin(), list.end(), value);
}

// The largest member not above `layer`, or -1.
int last_not_above(const std::vector<int>& list, int layer) {
  auto it = std::upper_bound(list.begin(), list.end(), layer);
  return it == list.begin() ? -1 : *std::prev(it);
}

}  // namespace

bool ModelConfig::is_kv_source(int layer) const {
  return contains(kv_source_layer_ids, layer);
}
bool ModelConfig::is_index_source(int layer) const {
  return contains(index_source_layer_ids, layer);
}

int ModelConfig::kv_source(int layer) const {
  return compress_ratios[static_cast<size_t>(layer)] == 0 ? -1 : last_not_above(kv_source_layer_ids, layer);
}

int ModelConfig::index_source(int layer) const {
  return compress_ratios[static_cast<size_t>(layer)] == 0 ? -1 : last_not_above(index_source_layer_ids, layer);
}

int ModelConfig::engram_index(int layer) const {
  auto it = std::lower_bound(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return it != engram_layer_ids.end() && *it == layer ? static_cast<int>(it - engram_layer_ids.begin()) : -1;
}

std::string ModelConfig::truncation_obstacle() const {
  auto first = std::find(compress_ratios.begin(), compress_ratios.end(), 1);
  if (first == compress_ratios.end()) return "no layer has ratio 1";
  const int boundary = static_cast<int>(first - compress_ratios.begin());
  if (kv_source_layer_ids.back() != boundary) {
    return fmt::format("the first ratio-1 layer {} is not the last KV source {}", boundary, kv_source_layer_ids.back());
  }
  if (!engram_layer_ids.empty() && engram_layer_ids.back() >= boundary) {
    return fmt::format("Engram layer {} is not before the boundary {}", engram_layer_ids.back(), boundary);
  }
  // The features of a target are its input, and the boundary's input exists for all rows: it may count on either side.
  const auto& targets = dspark_target_layer_ids;
  if (!targets.empty() && targets.front() < boundary && targets.back() > boundary) {
    return fmt::format("draft targets {} and {} lie on both sides of the boundary {}", targets.front(), targets.back(),
                       boundary);
  }
  return "";
}

int ModelConfig::boundary_layer() const {
  return truncation_obstacle().empty() ? kv_source_layer_ids.back() : -1;
}

int64_t ModelConfig::kv_row_bytes(KvFormat format) const {
  return format == KvFormat::kFp4 ? head_dim / 2 + head_dim / 16 : head_dim + head_dim / 32;
}

int64_t ModelConfig::global_kv_bytes(int64_t num_positions, KvFormat format) const {
  int64_t num_rows = 0;
  for (int s : kv_source_layer_ids) num_rows += num_positions / compress_ratios[static_cast<size_t>(s)];
  return num_rows * (kv_row_bytes(format) + index_row_bytes());
}

double ModelConfig::global_kv_bytes_per_token(KvFormat format) const {
  return static_cast<double>(global_kv_bytes(2, format)) / 2;
}

int64_t ModelConfig::private_state_bytes(int ring_slots) const {
  // Rows of keys and of gates, fp32; one open group and as many rows as a roll-back may reach.
  const int64_t open_group_rows = ring_slots - sliding_window + 1;
  int64_t bytes = num_blocks() * ring_slots * window_row_bytes();
  for (int s : kv_source_layer_ids) {
    if (compress_ratios[static_cast<size_t>(s)] == 2) bytes += open_group_rows * 2 * head_dim * 4;
  }
  return bytes;
}

}  // namespace deepinfer
