// Text to token ids and back: byte-level BPE as a tokenizer.json describes it.
//
//   encode          trusted text: added tokens (control tokens among them) are matched by their literal text
//   encode_plain    untrusted text: the model vocabulary only, so that nobody can forge a control token
//   encode_marked   a rendered prompt: the marked ranges are control tokens, everything between is plain
// No id is ever added. Input that is not valid UTF-8 is read with U+FFFD in place of each ill-formed part.
//
// Two structures are understood, and anything else is refused by name: the three Split steps of the DeepSeek files, and
// a lone ByteLevel step with its own (GPT-2) pattern. Control tokens are found by their text; no id is known here.
//
// Immutable after loading; used by any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/word_table.h"

namespace deepinfer::text {

class PieceMemory;

// Half-open range of bytes.
struct ByteRange {
  int64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

class Tokenizer {
 public:
  // `path` is a tokenizer.json or a directory that holds one.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string json);

  // Appends the ids of `text` to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  // `marked` ranges ascend, do not overlap and lie in `text`. Fails if one of them is not the text of an added token.
  Result<void> encode_marked(std::string_view text, std::span<const ByteRange> marked, std::vector<int32_t>& ids) const;

  // Text of a whole sequence. Ids outside the table give nothing; `skip_special` drops the tokens flagged special.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // One past the largest id.
  int num_ids() const { return static_cast<int>(tokens_.size()); }
  // The bytes a token stands for, possibly a fragment of a character; empty outside the table.
  std::string_view token_bytes(int32_t id) const;
  bool is_added(int32_t id) const { return has(id) && tokens_[static_cast<std::size_t>(id)].is_added; }
  bool is_special(int32_t id) const { return has(id) && tokens_[static_cast<std::size_t>(id)].is_special; }
  bool has(int32_t id) const { return id >= 0 && id < num_ids() && tokens_[static_cast<std::size_t>(id)].is_present; }
  // Id of the added token with this text.
  std::optional<int32_t> added_id(std::string_view text) const;

 private:
  friend class TokenizerLoader;
  Tokenizer() = default;
  struct Token {
    uint32_t begin = 0, size = 0;  // in bytes_
    bool is_present = false, is_added = false, is_special = false;
  };
  void encode_valid(std::string_view text, PieceMemory& memory, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, PieceMemory& memory, std::vector<int32_t>& ids) const;

  std::string bytes_;  // of all tokens
  std::vector<Token> tokens_;
  std::array<int32_t, 256> byte_ids_{};
  MergeTable merges_;
  WordTable words_;
  AddedTokenMatcher added_;
  std::unordered_map<std::string, int32_t> added_ids_;
  SplitScheme scheme_ = SplitScheme::kDeepSeek;
};

// Spelling of bytes in the GPT-2 byte alphabet, the form in which tokenizer.json writes its vocabulary.
std::string spell_bytes(std::string_view bytes);

}  // namespace deepinfer::text
