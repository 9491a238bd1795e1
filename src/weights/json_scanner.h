// A forward-only JSON reader for the two large files of a checkpoint: shard headers and the index (10 MB of names).
//
// Unlike a DOM it sees every key, so that a name given twice is noticed, and it keeps no more than the caller stores.
// Each function returns false on malformed input and leaves a reason in `error()`; nothing is read past the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::weights {

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  bool consume(char c);           // skips white space, then takes c if it is next; no error is recorded
  bool expect(char c);            // the same, but its absence is an error
  bool string(std::string& out);  // a quoted string, escapes resolved
  bool integer(int64_t& out);     // a whole number that fits
  bool skip_value(int max_depth = 16);
  bool at_end();  // only white space is left

  // Calls f(key) for each key of an object; f must consume the value and returns false to stop.
  template <typename F>
  bool object(F&& f) {
    if (!expect('{')) return false;
    if (consume('}')) return true;
    std::string key;
    do {
      if (!string(key) || !expect(':') || !f(key)) return false;
    } while (consume(','));
    return expect('}');
  }
  template <typename F>
  bool array(F&& f) {
    if (!expect('[')) return false;
    if (consume(']')) return true;
    do {
      if (!f()) return false;
    } while (consume(','));
    return expect(']');
  }

  bool fail(std::string reason);  // records the first reason, returns false
  const std::string& error() const { return error_; }

 private:
  void skip_space();
  bool hex4(uint32_t& out);

  std::string_view text_;
  std::size_t at_ = 0;
  std::string error_;
};

}  // namespace deepinfer::weights
