#include "serve/keys.h"

#include <charconv>
#include <span>

#include <openssl/crypto.h>

#include "base/file.h"

namespace deepinfer::serve {
namespace {

constexpr std::string_view kDigestMark = "sha256:";
constexpr std::size_t kShortestKey = 8;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  while (true) {
    std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) return words;
    std::size_t end = line.find_first_of(" \t\r", begin);
    words.push_back(line.substr(begin, end - begin));
    if (end == line.npos) return words;
    line.remove_prefix(end);
  }
}

bool parse_digest(std::string_view digits, Sha256& out) {
  if (digits.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char* p = digits.data() + 2 * i;
    auto [end, ec] = std::from_chars(p, p + 2, out[i], 16);
    if (ec != std::errc() || end != p + 2) return false;
  }
  return true;
}

bool parse_option(std::string_view word, Principal& p) {
  if (word == "admin") {
    p.is_admin = true;
    return true;
  }
  std::size_t equals = word.find('=');
  if (equals == word.npos) return false;
  std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
  auto read = [&](auto& number) {
    auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), number);
    return ec == std::errc() && end == value.data() + value.size();
  };
  if (name == "rpm") return read(p.requests_per_minute) && p.requests_per_minute > 0;
  if (name == "tpm") return read(p.tokens_per_minute) && p.tokens_per_minute > 0;
  if (name == "priority") return read(p.priority) && p.priority >= -1000 && p.priority <= 1000;
  return false;
}

}  // namespace

Result<void> Keys::load(const std::string& path) {
  DI_TRY(std::string text, read_file(path));
  return parse(text, path);
}

Result<void> Keys::parse(std::string_view text, const std::string& path) {
  std::vector<Entry> entries;
  int number = 0;
  while (!text.empty()) {
    std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    ++number;
    std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    if (words.size() < 2) return fail(Code::kInvalid, "{}:{}: a line is NAME KEY and options", path, number);
    Entry entry{.digest = {}, .principal = {.name = std::string(words[0])}};
    if (words[1].starts_with(kDigestMark)) {
      if (!parse_digest(words[1].substr(kDigestMark.size()), entry.digest))
        return fail(Code::kInvalid, "{}:{}: sha256: needs 64 hex digits", path, number);
    } else if (words[1].size() < kShortestKey) {
      return fail(Code::kInvalid, "{}:{}: the key has {} characters; at least {} are needed", path, number,
                  words[1].size(), kShortestKey);
    } else {
      entry.digest = sha256(std::as_bytes(std::span(words[1])));
    }
    for (std::size_t i = 2; i < words.size(); ++i) {
      if (!parse_option(words[i], entry.principal))
        return fail(Code::kInvalid, "{}:{}: '{}' is none of rpm=N, tpm=N, priority=-1000..1000, admin", path, number,
                    words[i]);
    }
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) return fail(Code::kInvalid, "{}: there is no key in it, nobody could use the service", path);
  entries_ = std::move(entries);
  is_loaded_ = true;
  return {};
}

std::optional<Principal> Keys::find(std::string_view key) const {
  Sha256 digest = sha256(std::as_bytes(std::span(key)));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->principal;
}

std::optional<Principal> Keys::find_name(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.principal.name == name) return entry.principal;
  }
  return std::nullopt;
}

}  // namespace deepinfer::serve
