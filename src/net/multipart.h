// The parts of a multipart/form-data body (RFC 7578), as browsers and API clients send files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::net {

struct FormPart {
  std::string name, filename;
  std::string_view data;  // inside the body
};

// `content_type`: the header with its boundary. Errors say what is wrong and where.
Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace deepinfer::net
