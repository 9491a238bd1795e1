// Writes JSON text piece by piece: small answers and stream events, with no tree in between.
//
//   JsonWriter w;
//   w.begin_object().field("id", id).key("choices").begin_array() ... .end_array().end_object();
//   std::string text = w.take();
// Commas are placed by the writer; keys and values must alternate as JSON wants them, which is not checked.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "text/json_tree.h"

namespace deepinfer::serve {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name) {
    separate();
    text::append_json_string(name, out_);
    out_ += ':';
    needs_comma_ = false;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    separate();
    text::append_json_string(text, out_);
    return done();
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool b) { return raw(b ? "true" : "false"); }
  JsonWriter& value(std::integral auto number) { return raw(std::to_string(number)); }
  // JSON knows no infinities: the field's custom for the logarithm of nothing is -9999.
  JsonWriter& value(std::floating_point auto number) {
    return raw(std::isfinite(number) ? fmt::format("{}", number) : "-9999.0");
  }
  JsonWriter& null() { return raw("null"); }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    out_ += json;
    return done();
  }

  template <typename V>
  JsonWriter& field(std::string_view name, const V& v) {
    return key(name).value(v);
  }

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  void separate() {
    if (needs_comma_) out_ += ',';
  }
  JsonWriter& done() {
    needs_comma_ = true;
    return *this;
  }
  JsonWriter& open(char c) {
    separate();
    out_ += c;
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& close(char c) {
    out_ += c;
    return done();
  }

  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace deepinfer::serve
