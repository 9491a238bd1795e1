// deepinfer render: a chat request on stdin to the prompt the model sees.

#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "text/chat.h"
#include "text/json_tree.h"

namespace deepinfer {
namespace {

struct RenderOptions {
  std::string model;
  std::string policy = "open";
  bool keeps_reasoning = false;
};

// Text of the token that config.json names as image_token_id; the released spelling if there is no such member.
Result<std::string> image_token(const std::string& model, const text::Tokenizer& tokenizer) {
  std::string path = model + "/config.json";
  std::string name(text::kDefaultImageToken);
  if (!file_exists(path)) return name;
  DI_TRY(std::string json, read_file(path));
  auto tree = text::JsonTree::parse(std::move(json));
  if (!tree) return fail(Code::kCorrupt, "{}: {}", path, tree.error().message);
  text::JsonValue v = tree->root().find("image_token_id");
  if (!v.is_given()) return name;
  int32_t id = -1;
  std::from_chars(v.text().data(), v.text().data() + v.text().size(), id);
  if (!tokenizer.is_added(id)) return fail(Code::kCorrupt, "{}: image_token_id {} is no added token", path, v.text());
  return std::string(tokenizer.token_bytes(id));
}

Result<void> render(const RenderOptions& options) {
  DI_TRY(text::Tokenizer tokenizer, text::Tokenizer::load(options.model));
  DI_TRY(std::string image, image_token(options.model, tokenizer));
  std::string body(std::istreambuf_iterator<char>(std::cin), {});
  DI_TRY(text::ChatRequest request,
         text::parse_chat_request(std::move(body), {.is_official = options.policy == "official"}));
  text::ChatPrompt prompt =
      text::render_chat(request, {.image_token = image, .tool_results_keep_reasoning = options.keeps_reasoning});
  DI_TRY(std::vector<int32_t> ids, text::encode_prompt(tokenizer, prompt));

  std::string out = "{\"prompt\": ";
  text::append_json_string(prompt.text, out);
  out += fmt::format(", \"ids\": [{}], \"special\": [", fmt::join(ids, ", "));
  const char* comma = "";
  for (text::ByteRange range : prompt.special) {
    out += fmt::format("{}[{}, {}]", comma, range.begin, range.end);
    comma = ", ";
  }
  out += "]}\n";
  std::fwrite(out.data(), 1, out.size(), stdout);
  return {};
}

}  // namespace

void add_render(Command& app, int& exit_code) {
  auto options = std::make_shared<RenderOptions>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("render", "turn a chat request on stdin into {prompt, ids, special}");
  command.option("--model", options->model, "checkpoint directory").required();
  command.option("--policy", options->policy, "open, or official: only what the official service accepts")
      .one_of({"open", "official"});
  command.flag("--keep-reasoning", options->keeps_reasoning,
               "keep reasoning since the last user message even if no tools are declared");
  command.callback([options, &exit_code] {
    if (auto done = render(*options); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
