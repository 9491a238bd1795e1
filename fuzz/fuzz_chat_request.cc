// Any bytes as a chat request: an error that says something, or a prompt whose marked ranges are control tokens.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/chat.h"
#include "text/json_tree.h"

using namespace deepinfer;
using namespace deepinfer::text;

namespace {

void check(const std::string& body, bool is_official) {
  auto request = parse_chat_request(body, {.is_official = is_official});
  if (!request) {
    DI_CHECK(!request.error().message.empty() && request.error().code == Code::kInvalid);
    return;
  }
  ChatPrompt prompt = render_chat(*request, {.tool_results_keep_reasoning = !is_official});
  auto size = static_cast<int64_t>(prompt.text.size());
  int64_t end = 0;
  for (ByteRange range : prompt.special) {
    DI_CHECK(range.begin >= end && range.end > range.begin && range.end <= size);
    end = range.end;
    std::string_view token = std::string_view(prompt.text).substr(static_cast<std::size_t>(range.begin));
    DI_CHECK(token.starts_with('<') || token.starts_with("｜DSML｜"));
  }
  DI_CHECK(prompt.special.front().begin == 0);
  using Kind = OutputConstraint::Kind;
  bool is_schema = prompt.constraint.kind != Kind::kNone && prompt.constraint.kind != Kind::kRegex;
  if (is_schema && !prompt.constraint.schema.empty()) DI_CHECK(is_json(prompt.constraint.schema));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string body(reinterpret_cast<const char*>(data), size);
  check(body, false);
  check(body, true);
  return 0;
}
