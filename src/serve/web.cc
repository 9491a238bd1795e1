#include "serve/web.h"

#include "base/hash.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src "
    "'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view media_type(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {{".html", "text/html; charset=utf-8"},
                                                                      {".css", "text/css; charset=utf-8"},
                                                                      {".js", "text/javascript; charset=utf-8"},
                                                                      {".svg", "image/svg+xml"},
                                                                      {".png", "image/png"},
                                                                      {".ico", "image/x-icon"},
                                                                      {".json", "application/json"},
                                                                      {".webmanifest", "application/manifest+json"},
                                                                      {".woff2", "font/woff2"}};
  for (auto [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

void reply_file(Call& call, const WebFile& file, const std::string& tag) {
  net::Headers headers = {{"Content-Type", std::string(media_type(file.name))},
                          {"Content-Security-Policy", kPolicy},
                          {"X-Content-Type-Options", "nosniff"},
                          {"Referrer-Policy", "no-referrer"},
                          {"Cross-Origin-Opener-Policy", "same-origin"},
                          {"Cache-Control", "no-cache"},
                          {"ETag", tag}};
  if (call.request().header("if-none-match") == tag) return call.reply({.status = 304, .headers = std::move(headers)});
  call.reply({.headers = std::move(headers), .body = std::string(file.bytes)});
}

}  // namespace

void add_web(Service& service) {
  for (const WebFile& file : web_files()) {
    std::string tag = '"' + hex(sha256(std::as_bytes(std::span(file.bytes)))).substr(0, 32) + '"';
    auto handler = [file, tag](CallPtr call) { reply_file(*call, file, tag); };
    auto add = [&](std::string pattern) {
      service.router.add(
          {.method = "GET", .pattern = std::move(pattern), .access = Access::kPublic, .handler = handler});
    };
    add("/" + std::string(file.name));
    if (file.name == "index.html") add("/");
  }
}

}  // namespace deepinfer::serve
