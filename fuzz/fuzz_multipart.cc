// Any bytes as a multipart/form-data body: an error, or parts that lie inside the body.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "net/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::size_t line = input.find('\n');
  std::string_view type = input.substr(0, line), body = line == input.npos ? "" : input.substr(line + 1);
  auto parts = deepinfer::net::parse_form(type, body);
  if (!parts) {
    DI_CHECK(!parts.error().message.empty());
    return 0;
  }
  const char* end = body.data();
  for (const auto& part : *parts) {
    DI_CHECK(!part.name.empty());
    DI_CHECK(part.data.data() >= end && part.data.data() + part.data.size() <= body.data() + body.size());
    end = part.data.data() + part.data.size();
  }
  return 0;
}
