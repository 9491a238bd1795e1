// deepinfer tokenize: lines of JSON strings to lines of ids, or back with --decode.

#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "text/json_tree.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

struct TokenizeOptions {
  std::string model;
  bool is_plain = false;
  bool decodes = false;
};

// Appends the ids of one line, a JSON string, as a JSON list.
Result<void> encode_line(const text::Tokenizer& tokenizer, bool is_plain, text::JsonValue line, std::string& out) {
  if (!line.is_string()) return fail(Code::kInvalid, "a JSON string was expected");
  std::vector<int32_t> ids;
  if (is_plain) {
    tokenizer.encode_plain(line.text(), ids);
  } else {
    tokenizer.encode(line.text(), ids);
  }
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    char digits[16];
    auto end = std::to_chars(digits, digits + sizeof digits, ids[i]).ptr;
    if (i > 0) out += ", ";
    out.append(digits, end);
  }
  out += "]\n";
  return {};
}

// Appends the text of one line, a JSON list of ids, as a JSON string.
Result<void> decode_line(const text::Tokenizer& tokenizer, text::JsonValue line, std::string& out) {
  if (!line.is_array()) return fail(Code::kInvalid, "a JSON list of ids was expected");
  std::vector<int32_t> ids;
  for (text::JsonValue v : line) {
    int32_t id = -1;
    std::string_view spelling = v.text();
    auto read = std::from_chars(spelling.data(), spelling.data() + spelling.size(), id);
    bool is_id = v.is_number() && read.ec == std::errc() && read.ptr == spelling.data() + spelling.size();
    if (!is_id || !tokenizer.has(id)) {
      return fail(Code::kInvalid, "id {} is not one of the tokenizer's {} ids", spelling, tokenizer.num_ids());
    }
    ids.push_back(id);
  }
  text::append_json_string(tokenizer.decode(ids), out);
  out += '\n';
  return {};
}

Result<void> tokenize(const TokenizeOptions& options) {
  DI_TRY(text::Tokenizer tokenizer, text::Tokenizer::load(options.model));
  std::ios::sync_with_stdio(false);
  std::string line, out;
  constexpr std::size_t kFlushBytes = 1 << 16;
  auto flush = [&] {
    std::fwrite(out.data(), 1, out.size(), stdout);
    std::fflush(stdout);
    out.clear();
  };
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    auto tree = text::JsonTree::parse(std::move(line));
    auto done = !tree             ? Result<void>(tl::unexpected(tree.error()))
                : options.decodes ? decode_line(tokenizer, tree->root(), out)
                                  : encode_line(tokenizer, options.is_plain, tree->root(), out);
    if (!done) {
      flush();
      return fail(done.error().code, "line {}: {}", number, done.error().message);
    }
    // A caller that waits for each answer gets it at once; a file goes out in large pieces.
    if (out.size() >= kFlushBytes || std::cin.rdbuf()->in_avail() <= 0) flush();
  }
  flush();
  return {};
}

}  // namespace

void add_tokenize(Command& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("tokenize", "turn lines of JSON strings on stdin into lists of token ids");
  command.option("--model", options->model, "checkpoint directory or tokenizer.json").required();
  Option plain = command.flag("--plain", options->is_plain, "do not match added tokens");
  command.flag("--decode", options->decodes, "turn lines of id lists into JSON strings").excludes(plain);
  command.callback([options, &exit_code] {
    if (auto done = tokenize(*options); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
