// Stands for this folder in programs built without the service (./build.sh run, which is to answer within minutes).
#include "serve/load/load.h"
#include "serve/server.h"

namespace deepinfer::serve {

namespace {
tl::unexpected<Error> not_here() {
  return fail(Code::kUnsupported, "this quick build has no HTTP service; ./build.sh builds it");
}
}  // namespace

Result<std::unique_ptr<Server>> Server::create(const ServeOptions&) {
  return not_here();
}

Result<LoadResult> run_load(const LoadOptions&) {
  return not_here();
}

std::string ServeOptions::description() const {
  return "";
}

}  // namespace deepinfer::serve
