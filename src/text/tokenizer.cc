#include "text/tokenizer.h"

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/piece_memory.h"
#include "text/utf8.h"

namespace deepinfer::text {

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    append_lossy(text, repaired);
    text = repaired;
  }
  PieceMemory memory;
  for (std::size_t at = 0; at < text.size();) {
    auto match = added_.find(text, at);
    encode_valid(text.substr(at, match.begin - at), memory, ids);
    if (match.id >= 0) ids.push_back(match.id);
    at = match.end;
  }
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  PieceMemory memory;
  if (is_valid_utf8(text)) return encode_valid(text, memory, ids);
  std::string repaired;
  append_lossy(text, repaired);
  encode_valid(repaired, memory, ids);
}

Result<void> Tokenizer::encode_marked(std::string_view text, std::span<const ByteRange> marked,
                                      std::vector<int32_t>& ids) const {
  // Valid text, which is all that a request can hold, shares one memory of pieces between the ranges.
  bool is_valid = is_valid_utf8(text);
  PieceMemory memory;
  auto plain = [&](std::string_view part) { is_valid ? encode_valid(part, memory, ids) : encode_plain(part, ids); };
  std::size_t at = 0;
  for (ByteRange range : marked) {
    auto begin = static_cast<std::size_t>(range.begin), end = static_cast<std::size_t>(range.end);
    std::string_view name = text.substr(begin, end - begin);
    auto id = added_id(name);
    if (!id) return fail(Code::kUnsupported, "tokenizer.json has no control token '{}'", name);
    plain(text.substr(at, begin - at));
    ids.push_back(*id);
    at = end;
  }
  plain(text.substr(at));
  return {};
}

void Tokenizer::encode_valid(std::string_view text, PieceMemory& memory, std::vector<int32_t>& ids) const {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p != end) {
    const char* next = piece_end(scheme_, p, end);
    encode_piece({p, static_cast<std::size_t>(next - p)}, memory, ids);
    p = next;
  }
}

void Tokenizer::encode_piece(std::string_view piece, PieceMemory& memory, std::vector<int32_t>& ids) const {
  uint64_t hash = hash_word(piece);
  if (int32_t id = words_.find(piece, hash, bytes_); id >= 0) {
    ids.push_back(id);
    return;
  }
  if (memory.recall(piece, hash, ids)) return;
  std::size_t first = ids.size();
  for (char c : piece) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  auto count = merges_.apply(std::span(ids).subspan(first));
  ids.resize(first + static_cast<std::size_t>(count));
  memory.store(piece, hash, first, ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  Detokenizer detokenizer(*this, skip_special);
  for (int32_t id : ids) detokenizer.push(id, text);
  detokenizer.finish(text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!has(id)) return {};
  const Token& t = tokens_[static_cast<std::size_t>(id)];
  return std::string_view(bytes_).substr(t.begin, t.size);
}

std::optional<int32_t> Tokenizer::added_id(std::string_view text) const {
  auto at = added_ids_.find(std::string(text));
  if (at == added_ids_.end()) return std::nullopt;
  return at->second;
}

std::string spell_bytes(std::string_view bytes) {
  std::string spelled;
  for (char c : bytes) append_utf8(kByteAlphabet.letter_of[static_cast<unsigned char>(c)], spelled);
  return spelled;
}

}  // namespace deepinfer::text
