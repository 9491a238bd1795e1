#include "serve/endpoints.h"

#include "serve/admin.h"
#include "serve/anthropic/messages.h"
#include "serve/generate.h"
#include "serve/health.h"
#include "serve/openai/batches.h"
#include "serve/openai/chat.h"
#include "serve/openai/completions.h"
#include "serve/openai/files.h"
#include "serve/openai/models.h"
#include "serve/openai/responses.h"
#include "serve/refused.h"
#include "serve/tokenize.h"
#include "serve/web.h"

namespace deepinfer::serve {

void add_endpoints(Service& service) {
  add_health(service);
  add_tokenize(service);
  add_generate(service);
  openai::add_models(service);
  openai::add_chat(service);
  openai::add_completions(service);
  openai::add_responses(service);
  openai::add_files(service);
  openai::add_batches(service);
  anthropic::add_messages(service);
  add_refused(service);
  add_web(service);
  add_admin(service);
}

}  // namespace deepinfer::serve
