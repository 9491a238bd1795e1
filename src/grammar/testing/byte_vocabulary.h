// A vocabulary for tests: the 256 bytes, some longer tokens, and an end token.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace deepinfer::grammar {

inline Vocabulary byte_vocabulary(const std::vector<std::string>& longer = {"\":", "true", "name", "{\"", "12"}) {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.bytes.emplace_back(1, static_cast<char>(b));
  for (const std::string& t : longer) v.bytes.push_back(t);
  v.bytes.emplace_back();  // <think>
  v.bytes.emplace_back();  // </think>
  v.bytes.emplace_back();  // ｜DSML｜
  v.bytes.emplace_back();  // end
  auto size = static_cast<int32_t>(v.bytes.size());
  v.controls = {{size - 4, "<think>"}, {size - 3, "</think>"}, {size - 2, "｜DSML｜"}};
  v.eos_id = size - 1;
  return v;
}

// Compiles and waits.
inline Result<std::shared_ptr<const Grammar>> compile_now(Compiler& compiler, const StructuredOutput& output) {
  DI_TRY(StructuralTag tag, make_structural_tag(output));
  std::mutex mutex;
  std::condition_variable ready;
  std::optional<Result<std::shared_ptr<const Grammar>>> result;
  compiler.compile(tag, Compiler::Clock::time_point::max(), [&](auto r) {
    std::lock_guard lock(mutex);
    result = std::move(r);
    ready.notify_one();
  });
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return result.has_value(); });
  return *result;
}

// Bytes of `text` as tokens; false if one is refused.
inline bool accepts_bytes(Matcher& matcher, std::string_view text) {
  for (char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c)).value()) return false;
  }
  return true;
}

}  // namespace deepinfer::grammar
