// Endpoints that others have and this service has not: 501 with the reason, so that nobody has to guess.
#pragma once

namespace deepinfer::serve {
class Service;

void add_refused(Service& service);

}  // namespace deepinfer::serve
