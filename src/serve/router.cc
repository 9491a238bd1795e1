#include "serve/router.h"

#include <fmt/format.h>

namespace deepinfer::serve {
namespace {

constexpr std::string_view kHole = "{id}";

bool matches(std::string_view pattern, std::string_view path, std::string& id) {
  std::size_t hole = pattern.find(kHole);
  if (hole == pattern.npos) return pattern == path;
  std::string_view before = pattern.substr(0, hole), behind = pattern.substr(hole + kHole.size());
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind))
    return false;
  std::string_view middle = path.substr(before.size(), path.size() - before.size() - behind.size());
  if (middle.find('/') != middle.npos) return false;
  id = middle;
  return true;
}

}  // namespace

ApiResult<const Route*> Router::find(std::string_view method, std::string_view path, std::string& id) const {
  std::string allowed;
  std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    if (!matches(route.pattern, path, id)) continue;
    if (route.method == wanted) return &route;
    allowed += (allowed.empty() ? "" : ", ") + route.method;
  }
  if (allowed.empty()) return api_fail(404, "not_found", fmt::format("there is nothing at {} {}", method, path));
  return api_fail(405, "method_not_allowed", fmt::format("{} does not take {}; allowed: {}", path, method, allowed));
}

ApiStyle Router::style_of(std::string_view path) const {
  return path.starts_with("/v1/messages") ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
}

}  // namespace deepinfer::serve
