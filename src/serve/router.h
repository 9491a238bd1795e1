// Paths to endpoints. A pattern may hold one {id} segment.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/call.h"

namespace deepinfer::serve {

enum class Access {
  kPublic,  // anybody
  kKey,     // a key, if there are keys
  kAdmin,   // a key with the word admin; without keys, only a unix socket or this machine
};

struct Route {
  std::string method, pattern;
  Access access = Access::kKey;
  ApiStyle style = ApiStyle::kOpenAi;
  std::function<void(CallPtr)> handler;
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }

  // The route of a request, or 404 / 405 with what there is.
  ApiResult<const Route*> find(std::string_view method, std::string_view path, std::string& id) const;
  // The style of errors for a path, whether it has a route or not.
  ApiStyle style_of(std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace deepinfer::serve
