// Numbers with units, as options take them and reports print them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

// "1M", "128K", "1.5T", "4096": K, M, G, T are powers of 1024. kInvalid names `option`.
Result<int64_t> parse_quantity(std::string_view option, std::string_view text);

// "510.29 GB", "890 B": powers of 1000.
std::string format_bytes(double bytes);

}  // namespace deepinfer
