// JSON documents. The DOM keeps the order of keys. Heavy: include from .cc files only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/result.h"

namespace deepinfer::json {

using boost::json::array;
using boost::json::object;
using boost::json::string;
using boost::json::value;

// Parses one document; the error names the byte offset. Depth is limited so that hostile nesting cannot use up the
// stack.
Result<value> parse(std::string_view text, std::size_t max_depth = 64);
Result<value> parse_file(const std::string& path, std::size_t max_depth = 64);
std::string dump(const value& v);

}  // namespace deepinfer::json
