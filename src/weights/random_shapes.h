// The shapes of generated checkpoints.
//
//   flash   the released layer shapes with any number of layers; 40 layers give the released layout
//   bench   what two cores can run: 12 layers of 1536 channels, about 2 GB
//   tiny    every mechanism in about 20 MB, the shape of the embedded default model
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "weights/config.h"

namespace deepinfer::weights {

struct ShapeOptions {
  std::optional<int> layers;   // flash only
  std::optional<int> experts;  // routed experts; the draft keeps at most as many
  std::optional<int> vocab;
  std::optional<int> compressed_vocab;
  std::optional<int64_t> engram_vocab;  // smallest bucket size; table rows follow. flash: 65536 unless given
};

// `shape` is a name above or the path of a config.json. The result passes parse_config.
Result<ModelConfig> random_shape(const std::string& shape, const ShapeOptions& options);

}  // namespace deepinfer::weights
