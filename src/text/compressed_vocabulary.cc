#include "text/compressed_vocabulary.h"

#include <string>
#include <string_view>
#include <unordered_map>

#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

bool is_ascii_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Every run of space, tab, CR, LF becomes one space, in place.
void collapse_blanks(std::string& text) {
  std::size_t to = 0;
  bool is_in_run = false;
  for (char c : text) {
    bool is_blank = is_ascii_blank(c);
    if (!is_blank || !is_in_run) text[to++] = is_blank ? ' ' : c;
    is_in_run = is_blank;
  }
  text.resize(to);
}

// Without the Unicode white space at both ends.
std::string_view trimmed(std::string_view text) {
  const char* begin = nullptr;
  const char* end = nullptr;
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char* at = p;
    uint8_t c = char_class(next_code_point(p)) & kClassMask;
    if (c == kSpace || c == kNewline) continue;
    if (begin == nullptr) begin = at;
    end = p;
  }
  return begin == nullptr ? std::string_view() : std::string_view(begin, static_cast<std::size_t>(end - begin));
}

// What two tokens must share to share a compressed id; written to `key`.
void make_key(std::string_view bytes, std::string& key) {
  key.clear();
  if (!is_valid_utf8(bytes) || bytes.find(kReplacement) != bytes.npos) {
    key = spell_bytes(bytes);
    return;
  }
  append_folded(bytes, key);
  collapse_blanks(key);
  if (key == " ") return;
  std::string_view inner = trimmed(key);
  if (inner.empty()) {
    key = bytes;
  } else if (inner.size() != key.size()) {
    key = std::string(inner);
  }
}

}  // namespace

CompressedVocabulary compress_vocabulary(const Tokenizer& tokenizer) {
  CompressedVocabulary map;
  map.ids.reserve(static_cast<std::size_t>(tokenizer.num_ids()));
  std::unordered_map<std::string, int32_t> id_of;
  id_of.reserve(static_cast<std::size_t>(tokenizer.num_ids()));
  std::string key;
  for (int32_t id = 0; id < tokenizer.num_ids(); ++id) {
    make_key(tokenizer.token_bytes(id), key);
    auto [at, is_new] = id_of.try_emplace(key, map.size);
    if (is_new) ++map.size;
    map.ids.push_back(at->second);
  }
  return map;
}

}  // namespace deepinfer::text
