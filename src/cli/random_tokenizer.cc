#include "cli/random_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "base/json.h"
#include "text/byte_alphabet.h"

namespace deepinfer {
namespace {

// 26 capitals, and three of the four white-space bytes.
constexpr int kFoldedBytes = 29;

constexpr const char* kSteps[] = {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
                                  R"RE([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)RE"
                                  "\r\n"
                                  R"RE(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)RE"
                                  "\r\n"
                                  R"RE(]*|\s*[)RE"
                                  "\r\n"
                                  R"RE(]+|\s+(?!\S)|\s+)RE"};

// The byte's letter as UTF-8.
std::string letter(int byte) {
  const uint32_t c = text::kByteAlphabet.letter_of[static_cast<size_t>(byte)];
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
}

// Word number i over a..z: 676 of two letters, 17,576 of three, 456,976 of four, and so on.
std::string word(int64_t i) {
  size_t length = 2;
  int64_t count = 676;
  while (i >= count) {
    i -= count;
    count *= 26;
    ++length;
  }
  std::string w(length, 'a');
  for (size_t k = length; k-- > 0; i /= 26) w[k] = static_cast<char>('a' + i % 26);
  return w;
}

struct Token {
  std::string text;
  bool is_special = false;
};

// Control tokens by id: those the configuration fixes, the others from the end of the vocabulary.
Result<std::map<int, Token>> place_control_tokens(const ModelConfig& c) {
  std::map<int, Token> tokens;
  tokens[c.bos_token_id] = {"<｜begin▁of▁sentence｜>", true};
  tokens[c.eos_token_id] = {"<｜end▁of▁sentence｜>", true};
  tokens[c.pad_token_id] = {"<｜▁pad▁｜>", true};
  tokens[c.image_token_id] = {"<｜deepseek_image｜>", false};
  size_t num_fixed = 4;
  const bool has_noise = c.num_nextn_predict_layers > 0;
  if (has_noise) {
    tokens[c.dspark_noise_token_id] = {"<｜System｜>", false};
    ++num_fixed;
  }
  if (tokens.size() != num_fixed) return fail(Code::kInvalid, "bos, eos, pad, image and noise token ids must differ");
  std::vector<Token> others = {{"<｜User｜>"}, {"<｜Assistant｜>"},       {"<think>"},
                               {"</think>"},   {"<｜latest_reminder｜>"}, {"｜DSML｜"}};
  if (!has_noise) others.push_back({"<｜System｜>"});
  int id = c.vocab_size - 1;
  for (Token& t : others) {
    while (tokens.contains(id)) --id;
    if (id < 0)
      return fail(Code::kInvalid, "vocab_size {} has no room for {} control tokens", c.vocab_size,
                  num_fixed + others.size());
    tokens[id] = std::move(t);
  }
  // What lies above the first control token that is not at the start belongs to the added tokens as a whole.
  auto first = std::find_if(tokens.begin(), tokens.end(), [](const auto& t) { return t.first > 2; });
  for (int i = first == tokens.end() ? c.vocab_size : first->first; i < c.vocab_size; ++i) {
    if (!tokens.contains(i)) tokens[i] = {fmt::format("<｜place▁holder▁no▁{}｜>", i), true};
  }
  return tokens;
}

json::object pre_tokenizer() {
  json::array steps;
  for (const char* pattern : kSteps) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

json::object byte_level(bool trim_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", trim_offsets}, {"use_regex", true}};
}

}  // namespace

Result<std::string> random_tokenizer(const ModelConfig& c) {
  DI_TRY(auto control, place_control_tokens(c));
  const int num_words = c.vocab_size - static_cast<int>(control.size()) - 256;
  const int num_spaced = c.engram_layer_ids.empty() ? 0 : c.vocab_size - kFoldedBytes - c.engram_compressed_vocab_size;
  if (num_words < 0 || num_spaced < 0 || 2 * num_spaced > num_words) {
    return fail(Code::kInvalid,
                "a generated tokenizer of {} tokens ({} of them control tokens) cannot have {} compressed ids; allowed "
                "are {}..{}",
                c.vocab_size, control.size(), c.engram_compressed_vocab_size,
                c.vocab_size - kFoldedBytes - std::max(num_words, 0) / 2, c.vocab_size - kFoldedBytes);
  }
  json::object vocab;
  json::array merges, added;
  vocab.reserve(static_cast<size_t>(c.vocab_size));
  int64_t next = 0;
  const std::string space = letter(' ');
  for (int id = 0; id < c.vocab_size; ++id) {
    if (auto it = control.find(id); it != control.end()) {
      added.push_back({{"id", id},
                       {"content", it->second.text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", !it->second.is_special},
                       {"special", it->second.is_special}});
      if (id < 3) vocab[it->second.text] = id;
      continue;
    }
    const int64_t i = next++;
    if (i < 256) {
      vocab[letter(static_cast<int>(i))] = id;
    } else if (i < 256 + num_words - num_spaced) {
      const std::string w = word(i - 256);
      merges.push_back(json::value(w.substr(0, w.size() - 1) + " " + w.back()));
      vocab[w] = id;
    } else {
      const std::string w = word(i - 256 - (num_words - num_spaced));
      merges.push_back(json::value(space + " " + w));
      vocab[space + w] = id;
    }
  }
  json::object model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", false}};
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  json::object root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = json::object{{"type", "Sequence"}, {"normalizers", json::array{}}};
  root["pre_tokenizer"] = pre_tokenizer();
  root["post_processor"] = byte_level(false);
  root["decoder"] = byte_level(true);
  root["model"] = std::move(model);
  return json::dump(root) + "\n";
}

}  // namespace deepinfer
