// Engine::generate: a batch of requests, waited for.

#include <algorithm>
#include <condition_variable>

#include "engine/engine_impl.h"

namespace deepinfer::engine {
namespace {

// Collects the events of all requests; the engine's thread writes, the caller waits.
struct Collector {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RequestOutput> outputs;
  int64_t open = 0, finished = 0;

  void take(size_t request, const TokenEvent& e) {
    std::lock_guard lock(mutex);
    RequestOutput& output = outputs[request];
    CompletionOutput& c = output.outputs[static_cast<size_t>(e.choice)];
    if (e.token >= 0) {
      c.token_ids.push_back(e.token);
      if (e.logprob) c.logprobs.push_back(e.logprob);
      if (!e.top_logprobs.empty()) c.top_logprobs.push_back(e.top_logprobs);
    }
    if (!e.prompt_logprobs.empty()) output.prompt_logprobs = e.prompt_logprobs;
    c.text += e.text;
    if (e.finish_reason == FinishReason::kNone) return;
    c.finish_reason = e.finish_reason;
    c.error = e.error;
    c.is_user_error = e.is_user_error;
    c.usage = e.usage;
    --open;
    ++finished;
    changed.notify_one();
  }
};

}  // namespace

std::vector<RequestOutput> EngineImpl::generate(std::vector<Request> requests, std::function<bool(int64_t)> progress) {
  Collector collector;
  collector.outputs.resize(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    int n = std::clamp(requests[i].sampling.n, 1, sampling::kMaxChoices);  // submit refuses other values
    collector.outputs[i].prompt_token_ids = requests[i].prompt;
    for (int c = 0; c < n; ++c) collector.outputs[i].outputs.push_back({.index = c});
    collector.open += n;
  }
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto id = submit(std::move(requests[i]), [&collector, i](const TokenEvent& e) { collector.take(i, e); });
    if (id) {
      ids.push_back(*id);
      continue;
    }
    for (size_t c = 0; c < collector.outputs[i].outputs.size(); ++c) {
      collector.take(i, {.choice = static_cast<int>(c),
                         .finish_reason = FinishReason::kError,
                         .error = id.failure().message,
                         .is_user_error = id.failure().is_user_error});
    }
  }
  // The callback runs now and then even if nothing finished, so that a caller can react to an interrupt.
  constexpr auto kInterval = std::chrono::milliseconds(50);
  bool cancelled = false;
  std::unique_lock lock(collector.mutex);
  while (collector.open > 0) {
    collector.changed.wait_for(lock, kInterval);
    if (!progress || cancelled) continue;
    int64_t finished = collector.finished;
    lock.unlock();
    if (!progress(finished)) {
      cancelled = true;
      for (uint64_t id : ids) cancel(id);
    }
    lock.lock();
  }
  lock.unlock();
  if (progress && !cancelled) progress(collector.finished);
  return std::move(collector.outputs);
}

}  // namespace deepinfer::engine
