#include "net/multipart.h"

#include <optional>

#include "net/http.h"

namespace deepinfer::net {
namespace {

constexpr std::size_t kMaxParts = 64, kMaxPartHeader = 8 << 10, kMaxBoundary = 70;

std::string_view trim(std::string_view text) {
  std::size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == text.npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

// The value of `name` among "TYPE; name=value; other=\"quoted; \\\" value\"".
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  std::size_t at = header.find(';');
  while (at < header.size()) {
    std::size_t equals = header.find('=', ++at);
    if (equals == header.npos) return std::nullopt;
    std::string_view key = trim(header.substr(at, equals - at));
    std::string value;
    at = header.find_first_not_of(" \t", equals + 1);
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      at = header.find(';', at);
    } else if (at < header.size()) {
      std::size_t end = header.find(';', at);
      value = trim(header.substr(at, end - at));
      at = end;
    }
    if (equal_ignoring_case(key, name)) return value;
  }
  return std::nullopt;
}

Result<FormPart> parse_part(std::string_view part, std::size_t number) {
  std::size_t end = part.find("\r\n\r\n");
  if (end == part.npos || end > kMaxPartHeader)
    return fail(Code::kInvalid, "part {} has no end of its headers within {} bytes", number, kMaxPartHeader);
  FormPart out{.name = {}, .filename = {}, .data = part.substr(end + 4)};
  std::string_view headers = part.substr(0, end);
  while (!headers.empty()) {
    std::size_t line_end = headers.find("\r\n");
    std::string_view line = headers.substr(0, line_end);
    headers.remove_prefix(line_end == headers.npos ? headers.size() : line_end + 2);
    std::size_t colon = line.find(':');
    if (colon == line.npos || !equal_ignoring_case(trim(line.substr(0, colon)), "content-disposition")) continue;
    out.name = parameter(line.substr(colon + 1), "name").value_or("");
    out.filename = parameter(line.substr(colon + 1), "filename").value_or("");
  }
  if (out.name.empty()) return fail(Code::kInvalid, "part {} has no name", number);
  return out;
}

}  // namespace

Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body) {
  std::string_view type = trim(content_type.substr(0, content_type.find(';')));
  if (!equal_ignoring_case(type, "multipart/form-data"))
    return fail(Code::kInvalid, "the content type is '{}'; multipart/form-data is needed", type.substr(0, 60));
  std::string boundary = parameter(content_type, "boundary").value_or("");
  if (boundary.empty() || boundary.size() > kMaxBoundary)
    return fail(Code::kInvalid, "the boundary has {} characters; 1 to {} are needed", boundary.size(), kMaxBoundary);
  // Every delimiter begins a line; the first may stand at the very begin.
  std::string delimiter = "\r\n--" + boundary;
  std::size_t at = body.starts_with(std::string_view(delimiter).substr(2)) ? delimiter.size() - 2 : body.npos;
  if (at == body.npos) {
    at = body.find(delimiter);
    if (at == body.npos) return fail(Code::kInvalid, "the body does not hold its boundary");
    at += delimiter.size();
  }
  std::vector<FormPart> parts;
  while (!body.substr(at).starts_with("--")) {
    std::size_t line_end = body.find("\r\n", at);
    std::size_t next = line_end == body.npos ? body.npos : body.find(delimiter, line_end);
    if (next == body.npos) return fail(Code::kInvalid, "the last part does not end with the boundary");
    if (parts.size() == kMaxParts) return fail(Code::kInvalid, "there are more than {} parts", kMaxParts);
    std::size_t begin = line_end + 2;
    DI_TRY(FormPart part, parse_part(next > begin ? body.substr(begin, next - begin) : "", parts.size() + 1));
    parts.push_back(std::move(part));
    at = next + delimiter.size();
  }
  return parts;
}

}  // namespace deepinfer::net
