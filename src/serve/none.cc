// Stands for this folder in programs built without the service (./build.sh run, which is to answer within minutes).
#include "serve/server.h"

namespace deepinfer::serve {

Result<std::unique_ptr<Server>> Server::create(const ServeOptions&) {
  return fail(Code::kUnsupported, "this quick build has no HTTP service; ./build.sh builds it");
}

std::string ServeOptions::description() const {
  return "";
}

}  // namespace deepinfer::serve
