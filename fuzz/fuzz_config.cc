// config.json: whatever the bytes, either an error or a configuration that survives being written and read again.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace deepinfer;
  auto config = parse_config({reinterpret_cast<const char*>(data), size});
  if (!config) return 0;
  const std::string text = config_json(*config);
  auto again = parse_config(text);
  DI_CHECK(again && config_json(*again) == text, "{}", text);
  config->truncation_obstacle();
  return 0;
}
