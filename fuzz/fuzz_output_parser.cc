// Any text as model output, whole and in pieces: the same deltas, and closed arguments that are JSON.
//
// The first byte chooses the format, the second how the text is cut; the rest is the text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/json_tree.h"
#include "text/output_parser.h"
#include "text/utf8.h"

using namespace deepinfer;
using namespace deepinfer::text;

namespace {

std::vector<OutputDelta> parse(std::string_view text, const OutputFormat& format, std::size_t piece, bool& is_done) {
  OutputParser parser(format);
  std::vector<OutputDelta> deltas;
  for (std::size_t at = 0; at < text.size(); at += piece) parser.push(text.substr(at, piece), deltas);
  is_done = parser.is_done() && !parser.stop_index();
  parser.finish(deltas);
  return deltas;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  OutputFormat format;
  format.start = static_cast<OutputFormat::Start>(data[0] % 5);
  format.parses_tool_calls = (data[0] & 0x10) != 0 || format.start == OutputFormat::Start::kCalls;
  format.is_json = (data[0] & 0x20) != 0;
  if (data[0] & 0x40) format.stops = {"ab", "abc", "\n\n", "b<", "bca"};
  std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  bool is_done = false, is_done_in_pieces = false;
  std::vector<OutputDelta> whole = parse(text, format, text.size() + 1, is_done);
  std::vector<OutputDelta> pieces = parse(text, format, data[1] % 16 + 1, is_done_in_pieces);
  DI_CHECK(whole == pieces && is_done == is_done_in_pieces);

  if (!is_done || !is_valid_utf8(text)) return 0;
  ParsedOutput output;
  for (const OutputDelta& delta : whole) output.add(delta);
  for (std::size_t i = 0; i < output.calls.size(); ++i) {
    // Keys that are themselves nested too deeply do not exist; values are checked before they are passed on.
    DI_CHECK(is_json(output.calls[i].arguments), "{}", output.calls[i].arguments);
  }
  return 0;
}
