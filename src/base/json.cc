#include "base/json.h"

#include "base/file.h"

namespace deepinfer::json {

Result<value> parse(std::string_view text, std::size_t max_depth) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  boost::json::stream_parser parser({}, options);
  boost::system::error_code ec;
  std::size_t used = parser.write(text.data(), text.size(), ec);
  if (!ec) parser.finish(ec);
  if (ec == boost::json::error::too_deep)
    return fail(Code::kInvalid, "not valid JSON at byte {}: nested more than {} deep", used, max_depth);
  if (ec) return fail(Code::kInvalid, "not valid JSON at byte {}: {}", used, ec.message());
  return parser.release();
}

Result<value> parse_file(const std::string& path, std::size_t max_depth) {
  DI_TRY(std::string text, read_file(path));
  auto v = parse(text, max_depth);
  if (!v) return fail(v.error().code, "{}: {}", path, v.error().message);
  return v;
}

std::string dump(const value& v) {
  return boost::json::serialize(v);
}

}  // namespace deepinfer::json
