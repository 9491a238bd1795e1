#include "serve/written.h"

#include <algorithm>
#include <charconv>

namespace deepinfer::serve {
namespace {

using text::JsonValue;
using text::Message;

bool same_number(std::string_view a, std::string_view b) {
  if (a == b) return true;
  if (a.find_first_of(".eE") == a.npos && b.find_first_of(".eE") == b.npos) return false;  // integers of any size
  double x = 0, y = 0;
  std::from_chars(a.data(), a.data() + a.size(), x);
  std::from_chars(b.data(), b.data() + b.size(), y);
  return x == y;
}

bool same_value(JsonValue a, JsonValue b);

bool same_elements(JsonValue a, JsonValue b) {
  if (a.size() != b.size()) return false;
  auto other = b.begin();
  for (JsonValue v : a) {
    if (!same_value(v, *other)) return false;
    ++other;
  }
  return true;
}

bool same_value(JsonValue a, JsonValue b) {
  if (a.type() != b.type()) return false;
  if (a.is_number()) return same_number(a.text(), b.text());
  if (a.is_string()) return a.text() == b.text();
  if (a.is_array()) return same_elements(a, b);
  if (!a.is_object()) return true;
  auto members = text::unique_members(a);
  return members.size() == text::unique_members(b).size() &&
         std::ranges::all_of(members, [&](JsonValue m) { return same_value(m, b.find(m.key())); });
}

bool same_argument(const text::ToolArgument& a, const text::ToolArgument& b) {
  if (a.name != b.name || a.is_string != b.is_string) return false;
  return a.value == b.value || (!a.is_string && same_json(a.value, b.value));
}

bool same_call(const text::ToolCall& a, const text::ToolCall& b) {
  return a.name == b.name && std::is_permutation(a.arguments.begin(), a.arguments.end(), b.arguments.begin(),
                                                 b.arguments.end(), same_argument);
}

std::string content_of(const Message& m) {
  std::string text;
  for (const text::ContentPart& part : m.parts) text += part.text;
  return text;
}

bool says_the_same(const Message& a, const Message& b) {
  return a.reasoning == b.reasoning && content_of(a) == content_of(b) &&
         std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), same_call);
}

}  // namespace

bool same_json(std::string_view a, std::string_view b) {
  auto x = text::JsonTree::parse(std::string(a)), y = text::JsonTree::parse(std::string(b));
  return x && y && same_value(x->root(), y->root());
}

void WrittenAnswers::keep(const std::string& tenant, const std::string& first_call_id, const text::Tokenizer& tokenizer,
                          const text::OutputFormat& format, const std::vector<int32_t>& ids) {
  using Start = text::OutputFormat::Start;
  if (format.start == Start::kReasoningContinuation || format.start == Start::kTextContinuation) return;
  Answer answer{.written = {.text = tokenizer.decode(ids), .ids = ids, .opens_calls = format.start == Start::kCalls},
                .is_thinking = format.start == Start::kReasoning};
  text::ParsedOutput parsed = text::parse_output(answer.written.text, format);
  answer.message.reasoning = parsed.reasoning.value_or("");
  answer.message.parts.push_back({.text = parsed.content});
  for (const auto& call : parsed.calls)
    answer.message.calls.push_back({.id = {}, .name = call.name, .arguments = text::parse_arguments(call.arguments)});
  auto bytes = static_cast<int64_t>(2 * answer.written.text.size() + ids.size() * sizeof(int32_t));
  answers_.put(tenant, first_call_id, std::move(answer), bytes, std::chrono::steady_clock::now());
}

void WrittenAnswers::recall(const std::string& tenant, text::ChatRequest& chat) {
  if (chat.tools.empty()) return;  // then reasoning is left out of the history
  for (Message& m : chat.messages) {
    if (m.calls.empty() || m.is_prefix) continue;
    auto kept = answers_.get(tenant, m.calls[0].id, std::chrono::steady_clock::now());
    if (kept && kept->is_thinking == chat.is_thinking && says_the_same(kept->message, m))
      m.written = std::move(kept->written);
  }
}

}  // namespace deepinfer::serve
