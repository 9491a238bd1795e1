// Every tensor that a configuration implies: name, kind, shape (model.md 2).
//
//   kind     stored as               scale tensor (X.weight -> X.scale)       value
//   bf16     BF16 [r, c]             none                                     as is
//   f32      F32 [r, c]              none                                     as is
//   fp8      F8_E4M3 [r, c]          F8_E8M0 [ceil(r/32), ceil(c/32)]         code * 2^(scale[i/32, j/32] - 127)
//   fp8row   F8_E4M3 [r, c]          F8_E8M0 [r, c/32]                        code * 2^(scale[i, j/32] - 127)
//   fp4      I8 [r, c/2]             F8_E8M0 [r, c/32]                        low nibble of byte k is column 2k
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weights/config.h"
#include "weights/safetensors.h"

namespace deepinfer::weights {

enum class Kind : uint8_t { kBF16, kF32, kFp8, kFp8Row, kFp4 };
const char* kind_name(Kind kind);

// What a tensor is for; the rows of reports.
enum class Part : uint8_t {
  kEmbedding,
  kHead,
  kAttention,
  kIndexer,
  kStreams,
  kRouter,
  kSharedExpert,
  kExperts,
  kEngram,
  kEngramTable,
  kDraft,
  kDraftExperts,
  kNorm,
  kVision
};
inline constexpr int kNumParts = 14;
const char* part_name(Part part);

struct WeightSpec {
  std::string name;  // "layers.3.attn.wq_a.weight"
  Kind kind = Kind::kBF16;
  Part part = Part::kNorm;
  int rank = 2;                // of the stored shape: 1 or 2
  int64_t rows = 1, cols = 1;  // logical; a vector is [1, cols]

  bool is_quantised() const { return kind >= Kind::kFp8; }
  int64_t scale_rows() const;  // 0 without scales
  int64_t scale_cols() const;
  int64_t code_row_bytes() const;  // bytes of one row of codes (or values)
  int64_t code_bytes() const { return rows * code_row_bytes(); }
  int64_t scale_bytes() const { return scale_rows() * scale_cols(); }
  int64_t bytes() const { return code_bytes() + scale_bytes(); }
  std::string scale_name() const;  // "layers.3.attn.wq_a.scale"
  StoredType stored_type() const;
  std::vector<int64_t> stored_shape() const;
};

// In file order: embed, layers, norm, head, draft stages, then the vision tower (if the configuration has one).
std::vector<WeightSpec> inventory(const ModelConfig& config);

struct InventoryTotals {
  int64_t num_tensors = 0, num_bytes = 0;  // scale tensors counted
};
InventoryTotals totals(const std::vector<WeightSpec>& specs);

}  // namespace deepinfer::weights
