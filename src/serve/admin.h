// The admin port: what operators do to a running service. Without a key file it is open to this machine alone; with
// one, to keys with the word admin.
#pragma once

namespace deepinfer::serve {
class Service;

void add_admin(Service& service);

}  // namespace deepinfer::serve
