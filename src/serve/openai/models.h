// GET /v1/models, /v1/models/{id}
#pragma once

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

void add_models(Service& service);

}  // namespace deepinfer::serve::openai
