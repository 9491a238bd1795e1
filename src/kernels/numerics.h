// The four numerics (docs/architecture.md).
//
//   fp32    exact weights, no rounding anywhere                         reference backend only
//   qat     fp32, and the round trips of the caches and index queries   reference backend only
//   vendor  every rounding of model.md 6.2, one by one                  reference and CUDA backends
//   fast    formats chosen by the backend under the KL rule             all backends; the default
#pragma once

#include <optional>
#include <string_view>

namespace deepinfer::kernels {

enum class Numerics { kFp32, kQat, kVendor, kFast };

const char* numerics_name(Numerics n);
std::optional<Numerics> parse_numerics(std::string_view name);

inline bool rounds_caches(Numerics n) {
  return n != Numerics::kFp32;
}

}  // namespace deepinfer::kernels
