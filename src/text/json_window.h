// JSON output mode: of the text a model writes around a JSON document only the document is let through.
//
//   it begins    behind a line ```json or ```, or at the first { or [
//   it ends      at a line break followed by ```
// What lies outside is dropped. Works on text in pieces; holds back at most four bytes.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::text {

class JsonWindow {
 public:
  void push(std::string_view text, std::string& out);
  void finish(std::string& out);

 private:
  void before(char c, std::string& out);
  void inside(char c, std::string& out);

  enum class Place { kBefore, kInside, kAfter };
  Place place_ = Place::kBefore;
  std::string line_end_;     // last bytes before the document, enough for a fence
  std::size_t matched_ = 0;  // bytes of the closing fence that were held back
};

}  // namespace deepinfer::text
