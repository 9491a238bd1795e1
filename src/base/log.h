// Log lines to stderr. Include from .cc files only.
#pragma once

#include <string>

#include <spdlog/spdlog.h>

namespace deepinfer {

// Level: off, error, warn, info, debug. Called once in main; everything goes to stderr, stdout is for results.
void init_log(const std::string& level);

}  // namespace deepinfer
