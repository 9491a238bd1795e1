// Headers of safetensors files: whatever the bytes, either entries that lie inside the payload or an error.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace deepinfer;
  // The first two bytes choose the size of the payload, the rest is the header.
  if (size < 2) return 0;
  const int64_t payload = data[0] | data[1] << 8;
  auto entries = weights::parse_header({reinterpret_cast<const char*>(data) + 2, size - 2}, 8, payload);
  if (!entries) return 0;
  for (const auto& e : *entries) {
    DI_CHECK(e.bytes >= 0 && e.offset >= 8 && e.offset + e.bytes <= 8 + payload, "{} at {} + {}", e.name, e.offset,
             e.bytes);
  }
  return 0;
}
