// The list of endpoints; each add function lives with its endpoint.
#pragma once

namespace deepinfer::serve {
class Service;

void add_endpoints(Service& service);

}  // namespace deepinfer::serve
