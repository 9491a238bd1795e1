// HTTP messages as plain data: what a handler gets and what it answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::net {

struct Header {
  std::string name, value;
};
using Headers = std::vector<Header>;

// The value of the first header of that name, case ignored; empty if there is none.
std::string_view find_header(const Headers& headers, std::string_view name);

struct HttpRequest {
  std::string method;
  std::string path;   // percent-decoded, begins with '/'
  std::string query;  // behind '?', as it came
  Headers headers;
  std::string body;
  std::string peer;  // address of the client; "unix" on a unix socket

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

struct HttpResponse {
  int status = 200;
  Headers headers;  // without Content-Length and Connection, which the server writes
  std::string body;
};

std::string_view status_text(int status);

// Text with %XX replaced; a '%' without two hex digits stays.
std::string percent_decode(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace deepinfer::net
