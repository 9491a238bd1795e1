#include "serve/idempotency.h"

#include <span>

#include <fmt/format.h>

#include "base/hash.h"

namespace deepinfer::serve {
namespace {

constexpr std::size_t kLongestKey = 256;

std::string digest_of(const net::HttpRequest& request) {
  std::string text = request.path + '\n' + request.body;
  return hex(sha256(std::as_bytes(std::span(text))));
}

}  // namespace

bool Idempotency::answer(const CallPtr& call) {
  std::string key(call->request().header("idempotency-key"));
  if (key.empty()) return false;
  if (key.size() > kLongestKey) {
    call->reply_error(
        invalid_request(fmt::format("Idempotency-Key has {} characters; the limit is {}", key.size(), kLongestKey)));
    return true;
  }
  const std::string& tenant = call->principal.name;
  std::string digest = digest_of(call->request());
  auto now = std::chrono::steady_clock::now();
  if (auto kept = answers_.get(tenant, key, now)) {
    if (kept->digest != digest) {
      call->reply_error({.status = 422,
                         .message = fmt::format("the Idempotency-Key '{}' was used for another request", key),
                         .code = "idempotency_mismatch"});
      return true;
    }
    call->headers.push_back({"x-idempotent-replay", "true"});
    call->reply(kept->response);
    return true;
  }
  std::string name = tenant + '\n' + key;
  if (!running_.insert(name).second) {
    call->reply_error({.status = 409,
                       .message = fmt::format("a request with the Idempotency-Key '{}' is running", key),
                       .code = "idempotency_running",
                       .retry_after_s = 1});
    return true;
  }
  call->on_reply = [this, tenant, key, digest](const net::HttpResponse& response) {
    if (response.status != 200) return;
    auto bytes = static_cast<int64_t>(response.body.size() + key.size());
    answers_.put(tenant, key, {digest, response}, bytes, std::chrono::steady_clock::now());
  };
  auto before = std::move(call->exchange->on_close);
  call->exchange->on_close = [this, name, before = std::move(before)](net::CloseReason reason) {
    running_.erase(name);
    if (before) before(reason);
  };
  return false;
}

}  // namespace deepinfer::serve
