#include "serve/refused.h"

#include <fmt/format.h>

#include "serve/service.h"

namespace deepinfer::serve {
namespace {

struct RefusedPath {
  const char *path, *reason;
};

constexpr RefusedPath kRefused[] = {
    {"/v1/embeddings", "the model gives no embeddings"},
    {"/v1/moderations", "the model does not classify"},
    {"/v1/rerank", "the model does not rank"},
    {"/v1/score", "use /v1/completions with echo and logprobs"},
    {"/v1/images/generations", "the model writes text only"},
    {"/v1/images/edits", "the model writes text only"},
    {"/v1/audio/speech", "the model writes text only"},
    {"/v1/audio/transcriptions", "the model reads text only"},
    {"/v1/audio/translations", "the model reads text only"},
    {"/v1/fine_tuning/jobs", "the service does not train"},
    {"/v1/messages/batches", "use /v1/batches"},
    {"/v1/conversations", "use previous_response_id of /v1/responses"},
    {"/v1/assistants", "use /v1/responses"},
    {"/v1/threads", "use /v1/responses"},
    {"/drain", "it is on the admin port (--admin-port)"},
    {"/explain/{id}", "usage of an answer says what came from the cache; single misses are not recorded"},
    {"/cache", "the cache is managed by the engine alone"},
    {"/weights", "start another process with the other weights"},
    {"/role", "prefill and decode run in one process"},
};

}  // namespace

void add_refused(Service& service) {
  for (const RefusedPath& r : kRefused) {
    for (const char* method : {"GET", "POST"}) {
      service.router.add({.method = method,
                          .pattern = r.path,
                          .style = service.router.style_of(r.path),
                          .handler = [path = r.path, reason = r.reason](CallPtr call) {
                            call->reply_error({.status = 501,
                                               .message = fmt::format("{} is not built: {}", path, reason),
                                               .code = "not_supported"});
                          }});
    }
  }
}

}  // namespace deepinfer::serve
