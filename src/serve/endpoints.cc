#include "serve/endpoints.h"

#include "serve/anthropic/messages.h"
#include "serve/health.h"
#include "serve/openai/chat.h"
#include "serve/openai/completions.h"
#include "serve/openai/models.h"
#include "serve/openai/responses.h"
#include "serve/refused.h"
#include "serve/tokenize.h"
#include "serve/web.h"

namespace deepinfer::serve {

void add_endpoints(Service& service) {
  add_health(service);
  add_tokenize(service);
  openai::add_models(service);
  openai::add_chat(service);
  openai::add_completions(service);
  openai::add_responses(service);
  anthropic::add_messages(service);
  add_refused(service);
  add_web(service);
}

}  // namespace deepinfer::serve
