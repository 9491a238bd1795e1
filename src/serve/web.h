// GET / and the files beside it: the page, compiled in (cmake/web.cmake). Every file of src/serve/web is served under
// its own name; index.html also as /.
//
// The pages may load from this server only and may run no inline script (Content-Security-Policy).
#pragma once

#include <span>
#include <string_view>

namespace deepinfer::serve {
class Service;

struct WebFile {
  std::string_view name, bytes;
};
std::span<const WebFile> web_files();  // generated

void add_web(Service& service);

}  // namespace deepinfer::serve
