#include "kernels/ops.h"

#include <array>

namespace deepinfer::kernels {
namespace {

constexpr std::array<const char*, 4> kNumericsNames = {"fp32", "qat", "vendor", "fast"};

}  // namespace

const char* numerics_name(Numerics n) {
  return kNumericsNames[static_cast<size_t>(n)];
}

std::optional<Numerics> parse_numerics(std::string_view name) {
  for (size_t i = 0; i < kNumericsNames.size(); ++i) {
    if (name == kNumericsNames[i]) return static_cast<Numerics>(i);
  }
  return std::nullopt;
}

int64_t window_record_bytes(RecordFormat f, int head_dim) {
  return f == RecordFormat::kPacked ? head_dim + head_dim / 32 : int64_t{4} * head_dim;
}
int64_t entry_record_bytes(RecordFormat f, int head_dim) {
  return f == RecordFormat::kPacked ? head_dim / 2 + head_dim / 16 : int64_t{4} * head_dim;
}
int64_t index_record_bytes(RecordFormat f, int index_dim) {
  return f == RecordFormat::kPacked ? index_dim / 2 + index_dim / 32 : int64_t{4} * index_dim;
}

}  // namespace deepinfer::kernels
