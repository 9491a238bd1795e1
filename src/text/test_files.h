// What the tests of this folder read: the case files, the released tokenizer, the fixture's and the tiny model's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "text/json_tree.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

inline std::string source_path(const std::string& path) {
  return std::string(DI_SOURCE_DIR "/") + path;
}

inline const std::string kReleasedTokenizer = source_path("build/released_tokenizer/tokenizer.json");
inline const std::string kFixtureTokenizer = source_path("tests/golden/random-small/checkpoint/tokenizer.json");
inline const std::string kTinyTokenizer = source_path("models/tiny/tokenizer.json");

// If the file is missing, reports a failure and gives the fixture's tokenizer, with which nothing else crashes.
inline const Tokenizer& released_tokenizer() {
  static const Result<Tokenizer> loaded = Tokenizer::load(kReleasedTokenizer);
  if (loaded) return *loaded;
  static const Result<Tokenizer> other = Tokenizer::load(kFixtureTokenizer);
  ADD_FAILURE() << loaded.error().message << "; make the file with: python3 scripts/fetch_tokenizer.py";
  return *other;
}

inline const JsonTree& case_file(const std::string& name) {
  static std::vector<std::pair<std::string, JsonTree>> files = [] {
    std::vector<std::pair<std::string, JsonTree>> all;
    for (const char* file : {"tokenizer_cases", "encoding_cases", "parse_cases"}) {
      std::string path = source_path(std::string("tests/golden/cases/") + file + ".json");
      auto text = read_file(path);
      auto tree = JsonTree::parse(text ? *text : std::string("null"));
      EXPECT_TRUE(text && tree) << path;
      all.emplace_back(file, std::move(*tree));
    }
    return all;
  }();
  for (auto& [key, tree] : files) {
    if (key == name) return tree;
  }
  ADD_FAILURE() << "no case file " << name;
  return files.front().second;
}

inline std::vector<int32_t> to_ids(JsonValue list) {
  std::vector<int32_t> ids;
  for (JsonValue v : list) ids.push_back(std::stoi(std::string(v.text())));
  return ids;
}

}  // namespace deepinfer::text
