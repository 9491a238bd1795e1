// GET /live, /ready, /health, /load, /version, /metrics; POST /v1/cancel/{id}
#pragma once

namespace deepinfer::serve {
class Service;

void add_health(Service& service);

}  // namespace deepinfer::serve
