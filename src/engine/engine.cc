// The public interface's small calls.
#include "deepinfer/engine.h"

#include "engine/engine_impl.h"

namespace deepinfer {

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "cancelled", "deadline", "error"};
  return kNames[static_cast<int>(reason)];
}

const char* miss_cause_name(MissCause cause) {
  constexpr const char* kNames[] = {"none", "new", "evicted", "replayed", "boundary"};
  return kNames[static_cast<int>(cause)];
}

Outcome<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  auto settings = engine::read_settings();
  if (!settings) return Failure{true, settings.error().message};
  auto created = engine::EngineImpl::create(options, *settings);
  if (!created) return Failure{exit_code(created.error()) == 2, created.error().message};
  return std::unique_ptr<Engine>(std::move(*created));
}

namespace engine {

std::vector<int32_t> EngineImpl::encode(const std::string& text) const {
  std::vector<int32_t> ids;
  tokenizer_.encode(text, ids);
  return ids;
}

std::string EngineImpl::decode(std::span<const int32_t> ids) const {
  return tokenizer_.decode(ids);
}

EngineStats EngineImpl::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<StepRecord> EngineImpl::recent_steps() const {
  std::lock_guard lock(mutex_);
  return {steps_.begin(), steps_.end()};
}

}  // namespace engine
}  // namespace deepinfer
