#include "base/env.h"

#include <algorithm>
#include <cstdlib>

extern char** environ;

namespace deepinfer {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::pair<std::string, std::string>> env_with_prefix(std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view line = *entry;
    size_t equals = line.find('=');
    if (equals == std::string_view::npos || !line.starts_with(prefix)) continue;
    found.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = ~size_t{0};
  for (std::string_view c : candidates) {
    size_t distance = edit_distance(name, c);
    if (distance < best_distance) best = c, best_distance = distance;
  }
  return std::string(best);
}

}  // namespace deepinfer
