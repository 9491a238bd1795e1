// GET /live, /ready, /health, /load, /version, /metrics; POST /v1/cancel/{id}
#pragma once

namespace deepinfer::serve {
struct Call;
class Service;

void add_health(Service& service);

void reply_load(const Service& service, Call& call);
void reply_metrics(Service& service, Call& call);

}  // namespace deepinfer::serve
