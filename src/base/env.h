// The process environment, read in one place.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

std::optional<std::string> env(const char* name);

// All variables whose names begin with `prefix`, sorted by name.
std::vector<std::pair<std::string, std::string>> env_with_prefix(std::string_view prefix);

// The candidate with the smallest edit distance to `name` ("" if there is none): for messages about unknown names.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace deepinfer
