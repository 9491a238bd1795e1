// Reading tokenizer.json. Everything in the file that would change ids and that is not built here is refused by name.

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "text/byte_alphabet.h"
#include "text/json_tree.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

constexpr std::string_view kFirstSplit = R"(\p{N}{1,3})";
constexpr std::string_view kSecondSplit = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kThirdSplit =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|"
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

std::string shown(JsonValue v) {
  std::string text;
  append_json(v, JsonStyle::kSpaced, text);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

auto unsupported(std::string_view field, JsonValue v) {
  return fail(Code::kUnsupported, "tokenizer.json: {} {} is not supported", field, shown(v));
}

// Absent, null, false and "" all mean that a feature is off.
bool is_off(JsonValue v) {
  return !v.is_given() || (v.is_bool() && !v.is_true()) || (v.is_string() && v.text().empty());
}

Result<void> check_split(JsonValue step, std::string_view pattern) {
  bool is_split = step.find("type").text() == "Split" && step.find("behavior").text() == "Isolated";
  if (!is_split || step.find("invert").is_true() || step.find("pattern").find("Regex").text() != pattern) {
    return unsupported("pre_tokenizer step", step);
  }
  return {};
}

Result<SplitScheme> read_scheme(JsonValue v) {
  if (v.find("add_prefix_space").is_true()) return unsupported("pre_tokenizer", v);
  if (v.find("type").text() == "ByteLevel") {
    if (!v.find("use_regex").is_missing() && !v.find("use_regex").is_true()) return unsupported("pre_tokenizer", v);
    return SplitScheme::kGpt2;
  }
  if (v.find("type").text() != "Sequence") return unsupported("pre_tokenizer", v);
  std::vector<JsonValue> steps;
  for (JsonValue step : v.find("pretokenizers")) steps.push_back(step);
  if (steps.size() != 4) return unsupported("pre_tokenizer", v);
  DI_TRY_VOID(check_split(steps[0], kFirstSplit));
  DI_TRY_VOID(check_split(steps[1], kSecondSplit));
  DI_TRY_VOID(check_split(steps[2], kThirdSplit));
  bool is_byte_level = steps[3].find("type").text() == "ByteLevel" && !steps[3].find("add_prefix_space").is_true();
  if (!is_byte_level || !steps[3].find("use_regex").is_bool() || steps[3].find("use_regex").is_true()) {
    return unsupported("pre_tokenizer step", steps[3]);
  }
  return SplitScheme::kDeepSeek;
}

Result<void> check_structure(JsonValue file) {
  JsonValue model = file.find("model");
  if (!model.is_object()) return fail(Code::kCorrupt, "tokenizer.json has no object 'model'");
  if (model.find("type").text() != "BPE") return unsupported("model type", model.find("type"));
  for (std::string_view name : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                                "byte_fallback", "ignore_merges"}) {
    if (!is_off(model.find(name))) return unsupported(fmt::format("model {}", name), model.find(name));
  }
  for (std::string_view name : {"truncation", "padding"}) {
    if (file.find(name).is_given()) return unsupported(name, file.find(name));
  }
  JsonValue normalizer = file.find("normalizer");
  bool is_identity = normalizer.find("type").text() == "Sequence" && normalizer.find("normalizers").is_array() &&
                     normalizer.find("normalizers").size() == 0;
  if (normalizer.is_given() && !is_identity) return unsupported("normalizer", normalizer);
  JsonValue post = file.find("post_processor");
  if (post.is_given() && post.find("type").text() != "ByteLevel") return unsupported("post_processor", post);
  if (file.find("decoder").find("type").text() != "ByteLevel") return unsupported("decoder", file.find("decoder"));
  return {};
}

Result<int32_t> read_id(JsonValue v, std::string_view owner) {
  int32_t id = -1;
  std::string_view text = v.text();
  auto read = std::from_chars(text.data(), text.data() + text.size(), id);
  if (!v.is_number() || read.ec != std::errc() || read.ptr != text.data() + text.size() || id < 0 ||
      id >= kMaxTokenIds) {
    return fail(Code::kCorrupt, "tokenizer.json: '{}' has the id {}, not one of 0 .. {}", owner, shown(v),
                kMaxTokenIds - 1);
  }
  return id;
}

// Appends the bytes that a vocabulary entry spells. Entries with characters outside the alphabet (the first three of
// the released file) stand for themselves.
void append_spelled_bytes(std::string_view spelled, std::string& out) {
  std::size_t before = out.size();
  for (const char* p = spelled.data(); p < spelled.data() + spelled.size();) {
    uint32_t c = next_code_point(p);
    if (c >= ByteAlphabet::kNumLetters || kByteAlphabet.byte_of[c] < 0) {
      out.resize(before);
      out += spelled;
      return;
    }
    out += static_cast<char>(kByteAlphabet.byte_of[c]);
  }
}

}  // namespace

class TokenizerLoader {
 public:
  Result<Tokenizer> run(JsonValue file) {
    DI_TRY_VOID(check_structure(file));
    DI_TRY(t_.scheme_, read_scheme(file.find("pre_tokenizer")));
    JsonValue model = file.find("model");
    DI_TRY_VOID(read_vocabulary(model.find("vocab")));
    DI_TRY_VOID(read_merges(model.find("merges")));
    DI_TRY_VOID(find_bytes());
    collect_words();
    DI_TRY_VOID(read_added(file.find("added_tokens")));
    return std::move(t_);
  }

 private:
  int32_t id_of(std::string_view spelled) const { return spelled_ids_.find(spelled, hash_word(spelled), spelled_); }

  Tokenizer::Token& slot(int32_t id) {
    auto i = static_cast<std::size_t>(id);
    if (i >= t_.tokens_.size()) t_.tokens_.resize(i + 1);
    return t_.tokens_[i];
  }

  Result<void> read_vocabulary(JsonValue vocab) {
    if (!vocab.is_object()) return fail(Code::kCorrupt, "tokenizer.json: model has no object 'vocab'");
    std::vector<WordTable::Entry> entries;
    entries.reserve(static_cast<std::size_t>(vocab.size()));
    for (JsonValue v : vocab) {
      DI_TRY(int32_t id, read_id(v, v.key()));
      if (v.key().empty()) return fail(Code::kCorrupt, "tokenizer.json: the entry with id {} is empty", id);
      Tokenizer::Token& token = slot(id);
      if (token.is_present) return fail(Code::kCorrupt, "tokenizer.json: '{}' repeats the id {}", v.key(), id);
      entries.push_back(
          {.begin = static_cast<uint32_t>(spelled_.size()), .size = static_cast<uint32_t>(v.key().size()), .id = id});
      spelled_ += v.key();
      token.is_present = true;
      token.begin = static_cast<uint32_t>(t_.bytes_.size());
      append_spelled_bytes(v.key(), t_.bytes_);
      token.size = static_cast<uint32_t>(t_.bytes_.size()) - token.begin;
    }
    spelled_ids_ = WordTable(spelled_, entries);
    for (const auto& e : entries) {
      std::string_view name = std::string_view(spelled_).substr(e.begin, e.size);
      if (id_of(name) != e.id) return fail(Code::kCorrupt, "tokenizer.json: vocab lists '{}' twice", name);
    }
    return {};
  }

  Result<void> read_merges(JsonValue merges) {
    if (!merges.is_array()) return fail(Code::kCorrupt, "tokenizer.json: model has no list 'merges'");
    std::vector<Merge> list;
    list.reserve(static_cast<std::size_t>(merges.size()));
    std::string joined;
    for (JsonValue v : merges) {
      std::string_view left, right;
      if (v.is_string()) {
        std::size_t space = v.text().find(' ');
        if (space != std::string_view::npos) {
          left = v.text().substr(0, space);
          right = v.text().substr(space + 1);
        }
      } else if (v.is_array() && v.size() == 2) {
        left = (*v.begin()).text();
        right = (*++v.begin()).text();
      }
      if (left.empty() || right.empty() || (v.is_string() && right.find(' ') != right.npos)) {
        return fail(Code::kCorrupt, "tokenizer.json: merge {} is {}, not two entries", list.size(), shown(v));
      }
      joined.assign(left);
      joined += right;
      Merge m{.left = id_of(left), .right = id_of(right), .result = id_of(joined)};
      if (m.left < 0 || m.right < 0 || m.result < 0) {
        std::string_view missing = m.left < 0 ? left : m.right < 0 ? right : std::string_view(joined);
        return fail(Code::kCorrupt, "tokenizer.json: merge {} needs '{}', which is not in the vocabulary", list.size(),
                    missing);
      }
      list.push_back(m);
    }
    auto table = MergeTable::build(list);
    if (!table) return fail(table.error().code, "tokenizer.json: {}", table.error().message);
    t_.merges_ = std::move(*table);
    return {};
  }

  Result<void> find_bytes() {
    for (int b = 0; b < 256; ++b) {
      char byte = static_cast<char>(b);
      int32_t id = id_of(spell_bytes({&byte, 1}));
      if (id < 0) return fail(Code::kCorrupt, "tokenizer.json: no vocabulary entry for the byte 0x{:02x}", b);
      t_.byte_ids_[static_cast<std::size_t>(b)] = id;
    }
    return {};
  }

  void collect_words() {
    std::vector<WordTable::Entry> words;
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < t_.num_ids(); ++id) {
      ids.clear();
      for (char c : t_.token_bytes(id)) ids.push_back(t_.byte_ids_[static_cast<unsigned char>(c)]);
      if (t_.merges_.apply(ids) != 1 || ids[0] != id) continue;
      const auto& token = t_.tokens_[static_cast<std::size_t>(id)];
      words.push_back({.begin = token.begin, .size = token.size, .id = id});
    }
    t_.words_ = WordTable(t_.bytes_, words);
  }

  Result<void> read_added(JsonValue added) {
    if (added.is_given() && !added.is_array())
      return fail(Code::kCorrupt, "tokenizer.json: 'added_tokens' is not a list");
    std::vector<AddedTokenMatcher::Entry> entries;
    for (JsonValue v : added) {
      std::string_view content = v.find("content").text();
      DI_TRY(int32_t id, read_id(v.find("id"), content));
      if (content.empty() || content.size() > kMaxAddedTokenBytes) {
        return fail(Code::kUnsupported, "tokenizer.json: added token {} has {} bytes, not 1 to {}", id, content.size(),
                    kMaxAddedTokenBytes);
      }
      for (std::string_view name : {"single_word", "lstrip", "rstrip"}) {
        if (v.find(name).is_true())
          return fail(Code::kUnsupported, "tokenizer.json: {} of '{}' is not supported", name, content);
      }
      int32_t known = id_of(content);
      // A vocabulary entry may be repeated as an added token if both stand for the same bytes.
      bool is_same = known == id ? t_.token_bytes(id) == content : known < 0 && !t_.has(id);
      if (!is_same || !t_.added_ids_.emplace(content, id).second) {
        return fail(Code::kCorrupt, "tokenizer.json: added token '{}' with id {} contradicts another entry", content,
                    id);
      }
      Tokenizer::Token& token = slot(id);
      token = {.begin = static_cast<uint32_t>(t_.bytes_.size()),
               .size = static_cast<uint32_t>(content.size()),
               .is_present = true,
               .is_added = true,
               .is_special = v.find("special").is_true()};
      t_.bytes_ += content;
      entries.push_back({std::string(content), id});
    }
    t_.added_ = AddedTokenMatcher(std::move(entries));
    return {};
  }

  Tokenizer t_;
  std::string spelled_;  // vocabulary entries as the file spells them
  WordTable spelled_ids_;
};

Result<Tokenizer> Tokenizer::parse(std::string json) {
  auto tree = JsonTree::parse(std::move(json));
  if (!tree) return fail(Code::kCorrupt, "tokenizer.json: {}", tree.error().message);
  return TokenizerLoader().run(tree->root());
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::string file = std::filesystem::is_directory(path) ? path + "/tokenizer.json" : path;
  DI_TRY(std::string json, read_file(file));
  auto tokenizer = parse(std::move(json));
  if (!tokenizer) return fail(tokenizer.error().code, "{} ({})", tokenizer.error().message, file);
  return tokenizer;
}

}  // namespace deepinfer::text
