// API keys: who may use the service, how much, and with which priority.
//
//   A file of lines:   NAME KEY [rpm=N] [tpm=N] [priority=N] [admin]        '#' begins a comment
//   KEY is the key itself or sha256:<64 hex digits> of it. Only digests are kept. A presented key is hashed and
//   compared with every entry in constant time, so the time says nothing about how close a guess was.
//
// NAME is the tenant: requests of one tenant share cached blocks and a share of the machine. Several keys may have one
// name. Owned by the loop.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace deepinfer::serve {

struct Principal {
  std::string name;                                       // empty: nobody in particular
  double requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
  int priority = 0;
  bool is_admin = false;
};

class Keys {
 public:
  // Fails with file, line and reason; the keys that were there stay.
  Result<void> load(const std::string& path);
  Result<void> parse(std::string_view text, const std::string& path);

  bool is_open() const { return !is_loaded_; }  // no file: no key is needed
  std::optional<Principal> find(std::string_view key) const;
  std::optional<Principal> find_name(std::string_view name) const;
  int size() const { return static_cast<int>(entries_.size()); }

 private:
  struct Entry {
    Sha256 digest;
    Principal principal;
  };
  std::vector<Entry> entries_;
  bool is_loaded_ = false;
};

}  // namespace deepinfer::serve
