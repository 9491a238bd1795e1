#include "serve/tokenize.h"

#include "serve/chat_plan.h"
#include "serve/fields.h"
#include "serve/generation_fields.h"
#include "serve/json_writer.h"
#include "serve/openai/wire.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

struct TokenizeFields {
  std::string model;
  std::optional<std::string> prompt;
  bool is_chat = false;
  bool adds_special_tokens = true, parses_control_tokens = false, returns_token_strings = false;
};

struct DetokenizeFields {
  std::string model;
  std::vector<int32_t> tokens;
  bool has_tokens = false, skips_special_tokens = false;
};

constexpr std::size_t kMaxTokens = std::size_t{1} << 22;

const FieldTable<TokenizeFields>& tokenize_fields() {
  using F = TokenizeFields;
  static const FieldTable<F> table = {
      string_of<F>("model", &F::model, 256),
      string_of<F>("prompt", &F::prompt, std::size_t{1} << 30),
      boolean_of<F>("add_special_tokens", &F::adds_special_tokens),
      boolean_of<F>("parse_control_tokens", &F::parses_control_tokens),
      boolean_of<F>("return_token_strs", &F::returns_token_strings),
      custom<F>("messages",
                [](JsonValue, F& out) -> ApiResult<> {
                  out.is_chat = true;
                  return {};
                }),
      ignored<F>("tools"),
      ignored<F>("tool_choice"),
      ignored<F>("response_format"),
      ignored<F>("thinking"),
      ignored<F>("reasoning_effort"),
  };
  return table;
}

const FieldTable<DetokenizeFields>& detokenize_fields() {
  using F = DetokenizeFields;
  static const FieldTable<F> table = {
      string_of<F>("model", &F::model, 256),
      boolean_of<F>("skip_special_tokens", &F::skips_special_tokens),
      custom<F>("tokens",
                [](JsonValue v, F& out) -> ApiResult<> {
                  DI_TRY(out.tokens, read_token_ids("tokens", v, kMaxTokens));
                  out.has_tokens = true;
                  return {};
                }),
  };
  return table;
}

ApiResult<text::ChatPrompt> render_body(const Reading& from, const text::JsonTree& tree) {
  auto chat = text::parse_chat_request(tree.root());
  if (!chat) return tl::unexpected(to_api_error(chat.error()));
  return prompt_of(from, *chat);
}

std::vector<int32_t> encode_text(const Model& model, const TokenizeFields& f) {
  std::vector<int32_t> ids;
  if (f.adds_special_tokens) {
    if (auto bos = model.tokenizer->added_id(text::kBos)) ids.push_back(*bos);
  }
  f.parses_control_tokens ? model.tokenizer->encode(*f.prompt, ids) : model.tokenizer->encode_plain(*f.prompt, ids);
  return ids;
}

void write_range(JsonWriter& w, text::ByteRange range) {
  w.begin_array().value(range.begin).value(range.end).end_array();
}

}  // namespace

ApiResult<std::string> tokenize(const Reading& from, std::string body) {
  const Model& model = from.model;
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  TokenizeFields fields;
  std::vector<std::string> unknown;
  DI_TRY_VOID(read_fields(tree.root(), tokenize_fields(), fields, unknown));
  DI_TRY_VOID(check_model(model, fields.model));
  if (fields.is_chat == fields.prompt.has_value())
    return bad_field("prompt", "exactly one of prompt and messages is needed");
  std::vector<int32_t> ids;
  if (fields.is_chat) {
    DI_TRY(text::ChatPrompt prompt, render_body(from, tree));
    DI_TRY(ids, prompt_ids(model, prompt));
  } else {
    ids = encode_text(model, fields);
  }
  JsonWriter w;
  w.begin_object().field("count", ids.size()).field("max_model_len", model.max_model_len).key("tokens");
  openai::write_token_ids(w, ids);
  if (fields.returns_token_strings) {
    w.key("token_strs").begin_array();
    for (int32_t id : ids) w.value(openai::token_text(*model.tokenizer, id));
    w.end_array();
  }
  return w.end_object().take();
}

ApiResult<std::string> detokenize(const Reading& from, std::string body) {
  const Model& model = from.model;
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  DetokenizeFields fields;
  std::vector<std::string> unknown;
  DI_TRY_VOID(read_fields(tree.root(), detokenize_fields(), fields, unknown));
  DI_TRY_VOID(check_model(model, fields.model));
  if (!fields.has_tokens) return bad_field("tokens", "tokens is missing; a list of token ids is needed");
  for (std::size_t i = 0; i < fields.tokens.size(); ++i) {
    if (fields.tokens[i] >= model.vocab_size) {
      std::string name = fmt::format("tokens[{}]", i);
      return bad_field(name, fmt::format("{} is {}; allowed: 0 to {}", name, fields.tokens[i], model.vocab_size - 1));
    }
  }
  JsonWriter w;
  w.begin_object().field("prompt", model.tokenizer->decode(fields.tokens, fields.skips_special_tokens));
  return w.end_object().take();
}

// The prompt of a chat as text and ids, with byte ranges: control tokens, each message, and what stands as the model
// wrote it, token for token.
ApiResult<std::string> render(const Reading& from, std::string body) {
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  DI_TRY(text::ChatPrompt prompt, render_body(from, tree));
  DI_TRY(std::vector<int32_t> ids, prompt_ids(from.model, prompt));
  JsonWriter w;
  w.begin_object().field("prompt", prompt.text).field("count", ids.size()).key("tokens");
  openai::write_token_ids(w, ids);
  w.key("special").begin_array();
  for (text::ByteRange range : prompt.special) write_range(w, range);
  w.end_array().key("messages").begin_array();
  for (text::ByteRange range : prompt.messages) write_range(w, range);
  w.end_array().key("written").begin_array();
  for (const text::WrittenRange& written : prompt.written) write_range(w, written.range);
  return w.end_array().end_object().take();
}

void add_tokenize(Service& service) {
  auto add = [&service](const char* pattern, ApiResult<std::string> (*work)(const Reading&, std::string)) {
    service.router.add({.method = "POST", .pattern = pattern, .handler = [&service, work](CallPtr call) {
                          service.compute(std::move(call), work);
                        }});
  };
  add("/tokenize", tokenize);
  add("/detokenize", detokenize);
  add("/render", render);
}

}  // namespace deepinfer::serve
