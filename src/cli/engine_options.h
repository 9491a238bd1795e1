// The engine's options on a command line, and the engine made from them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/engine_impl.h"

namespace deepinfer {
class Command;

// models/tiny of this source tree or installation: beside the working directory or above the binary; empty if not
// found.
std::string embedded_model();

// Adds --model, --threads, --numerics, --backend, --max-model-len, --max-num-seqs, --max-num-batched-tokens, --drafts,
// --truncation, --keep-tokens, --cache-mode, --max-step-ms, --engine-seed, --quiet, --download.
struct EngineFlags {
  EngineOptions options;
  std::string truncation, cache_mode;
  bool is_quiet = false;
  bool verifies_all = false;  // every round verifies as many drafts as it may, unless the environment chooses
  bool downloads = false;
  std::optional<engine::DraftQuality> draft_quality;  // no flag of its own: bench simulates drafts

  void add_to(Command& command);
  // Resolves the model, applies the environment and builds the engine; prints configuration and memory plan to stderr
  // unless it is quiet.
  Result<std::unique_ptr<engine::EngineImpl>> make();
};

// Adds --temperature, --top-p, --top-k, --min-p, --seed, --max-tokens, penalties, --stop, --ignore-eos, --logprobs, -n.
struct SamplingFlags {
  SamplingParams params;
  std::optional<uint64_t> seed;

  explicit SamplingFlags(int max_tokens) { params.max_tokens = max_tokens, params.temperature = 0; }
  void add_to(Command& command);
  SamplingParams get() const;
};

}  // namespace deepinfer
