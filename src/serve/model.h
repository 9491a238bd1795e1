// The model as the endpoints see it. Immutable once made, so workers may read it without a lock; the engine and the
// tokenizer outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deepinfer/engine.h"
#include "serve/options.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace deepinfer::serve {

struct Model {
  Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  std::string name;
  int64_t created_s = 0;  // Unix time of the start
  int64_t max_model_len = 0;
  std::string namespace_digest;  // of what makes cached keys of one server unusable to another; empty: not known
  int vocab_size = 0;
  std::optional<int32_t> end_think_id;
  text::ChatOptions chat;
  bool uses_official_sampling = false, trusts_prompts = false;
};

}  // namespace deepinfer::serve
