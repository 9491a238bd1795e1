// Any output of the model through the parser and every API's writers: each stream is one that a client can read, its
// events are JSON, and it ends as it should. Then the same bytes, and any bytes at all, cut anywhere by the reader.
//
//   byte 0: the writer; byte 1: where the output is cut into pieces; the rest: what the model writes

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "serve/anthropic/message_writers.h"
#include "serve/load/sse_reader.h"
#include "serve/openai/chat_writers.h"
#include "serve/openai/completion_writers.h"
#include "serve/openai/response_writers.h"
#include "serve/testing/fake_exchange.h"
#include "text/json_tree.h"
#include "text/utf8.h"

using namespace deepinfer;
using namespace deepinfer::serve;

namespace {

constexpr int kNumWriters = 4;

std::unique_ptr<Responder> make_writer(int which, const Model& model) {
  switch (which) {
    case 0:
      return openai::make_chat_stream({.id = "c", .model = &model, .is_thinking = true, .includes_usage = true});
    case 1:
      return openai::make_completion_stream({.id = "t", .model = &model, .includes_usage = true});
    case 2:
      return openai::make_response_writer(
          {.id = "r", .model = "m", .tenant = "", .echoed = "", .messages = "", .is_stream = true});
    default:
      return anthropic::make_message_stream({.id = "a", .model = "m"});
  }
}

std::vector<std::string> read(std::string_view stream, std::size_t step) {
  std::vector<std::string> data;
  SseReader reader;
  for (std::size_t at = 0; at < stream.size(); at += step)
    reader.push(stream.substr(at, step), [&](std::string_view d) { data.emplace_back(d); });
  return data;
}

// Pushes the text in two pieces and ends the stream. The engine gives whole characters, so the cut lies between two.
std::string stream_of(Responder& writer, const std::string& text, std::size_t cut) {
  auto exchange = std::make_shared<FakeExchange>(net::HttpRequest{});
  auto call = std::make_shared<Call>();
  call->exchange = exchange;
  text::OutputParser parser({.start = text::OutputFormat::Start::kReasoning, .parses_tool_calls = true});
  std::vector<std::string> ids;
  auto give = [&](std::vector<text::OutputDelta>& deltas) {
    while (static_cast<int>(ids.size()) < parser.num_calls()) ids.push_back("call_" + std::to_string(ids.size()));
    if (!deltas.empty()) writer.piece({.deltas = deltas, .call_ids = ids});
    deltas.clear();
  };
  writer.begin(call);
  while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) ++cut;
  std::vector<text::OutputDelta> deltas;
  parser.push(std::string_view(text).substr(0, cut), deltas);
  give(deltas);
  writer.keep_alive();
  parser.push(std::string_view(text).substr(cut), deltas);
  parser.finish(deltas);
  give(deltas);
  writer.choice_end({.finish_reason = parser.finish_reason("stop"), .stop = {}});
  writer.finish(call, {});
  DI_CHECK(exchange->is_over);
  return exchange->body;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  int which = data[0] % kNumWriters;
  std::string text;
  text::append_lossy({reinterpret_cast<const char*>(data) + 2, size - 2}, text);
  static const Model model{.name = "m", .chat = {}};
  auto writer = make_writer(which, model);
  std::string stream = stream_of(*writer, text, text.size() * data[1] / 255);

  DI_CHECK(stream.ends_with("\n\n"));
  std::vector<std::string> events = read(stream, stream.size());
  DI_CHECK(!events.empty() && events == read(stream, 1));
  bool has_mark = which < 2;
  DI_CHECK(!has_mark || events.back() == "[DONE]");
  if (has_mark) events.pop_back();
  for (const std::string& e : events) DI_CHECK(text::is_json(e), "{}", e);

  std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (!bytes.empty()) DI_CHECK(read(bytes, bytes.size()) == read(bytes, 1));
  return 0;
}
