// deepinfer generate: one prompt, the text as it comes, or one JSON object.

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>

#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/grammar_flags.h"
#include "engine/grammar_setup.h"
#include "text/chat.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

struct GenerateOptions {
  EngineFlags engine;
  SamplingFlags sampling{256};
  GrammarFlags grammar;
  std::string prompt, ids_file, chat_file;
  bool prints_json = false;
};

std::atomic<bool> interrupted{false};

struct Prompt {
  std::vector<int32_t> ids;
  text::OutputFormat format;
  std::optional<StructuredOutput> constraint;  // that a chat request asks for
  bool is_chat = false;
};

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  DI_TRY(json::value document, json::parse_file(path));
  const json::value* list = &document;
  if (document.is_array() && !document.as_array().empty() && !document.as_array()[0].is_number())
    list = &document.as_array()[0];
  if (list->is_object() && list->as_object().contains("ids")) list = &list->as_object().at("ids");
  if (!list->is_array()) return fail(Code::kInvalid, "{}: a list of token ids was expected", path);
  std::vector<int32_t> ids;
  for (const json::value& v : list->as_array()) {
    if (!v.is_int64() || v.as_int64() < INT32_MIN || v.as_int64() > INT32_MAX) {
      return fail(Code::kInvalid, "{}: entry {} is {}; a token id was expected", path, ids.size(), json::dump(v));
    }
    ids.push_back(static_cast<int32_t>(v.as_int64()));
  }
  return ids;
}

Result<Prompt> make_prompt(const GenerateOptions& options, const engine::EngineImpl& engine) {
  Prompt prompt;
  int given = !options.prompt.empty() + !options.ids_file.empty() + !options.chat_file.empty();
  if (given > 1) return fail(Code::kInvalid, "only one of --prompt, --ids and --chat can be given");
  if (given == 0) return fail(Code::kInvalid, "the prompt is empty; give --prompt TEXT, --ids FILE or --chat FILE");
  if (!options.ids_file.empty()) {
    DI_TRY(prompt.ids, read_ids(options.ids_file));
  } else if (!options.chat_file.empty()) {
    DI_TRY(std::string body, read_file(options.chat_file));
    DI_TRY(text::ChatRequest request, text::parse_chat_request(std::move(body)));
    text::ChatPrompt chat = text::render_chat(request);
    if (!chat.images.empty()) return fail(Code::kUnsupported, "{}: images are not supported yet", options.chat_file);
    DI_TRY(prompt.ids, text::encode_prompt(engine.tokenizer(), chat));
    prompt.format = chat.output;
    DI_TRY(prompt.constraint, engine::chat_constraint(request, chat));
    prompt.is_chat = true;
  } else {
    if (!text::is_valid_utf8(options.prompt)) return fail(Code::kInvalid, "the prompt is not valid UTF-8");
    DI_TRY(prompt.ids, text::encode_completion(engine.tokenizer(), options.prompt));
  }
  return prompt;
}

json::value to_json(const RequestOutput& output, const Prompt& prompt) {
  const CompletionOutput& c = output.outputs.front();
  json::object o;
  o["prompt_ids"] = json::array(output.prompt_token_ids.begin(), output.prompt_token_ids.end());
  o["ids"] = json::array(c.token_ids.begin(), c.token_ids.end());
  text::ParsedOutput parsed =
      prompt.is_chat ? text::parse_output(c.text, prompt.format) : text::ParsedOutput{.content = c.text};
  o["text"] = parsed.content;
  o["reasoning"] = parsed.reasoning ? json::value(*parsed.reasoning) : json::value(nullptr);
  json::array calls;
  for (const auto& call : parsed.calls)
    calls.push_back(json::object{{"name", call.name}, {"arguments", call.arguments}});
  o["tool_calls"] = std::move(calls);
  o["finish_reason"] = finish_reason_name(c.finish_reason);
  json::array logprobs;
  for (const auto& l : c.logprobs) logprobs.push_back(l ? json::value(*l) : json::value(nullptr));
  o["logprobs"] = std::move(logprobs);
  const Usage& u = c.usage;
  o["stats"] = json::object{{"prompt_tokens", u.prompt_tokens},
                            {"completion_tokens", u.completion_tokens},
                            {"cached_tokens", u.cached_tokens},
                            {"replayed_tokens", u.replayed_tokens},
                            {"from_stored_windows", u.from_stored_windows},
                            {"drafted_tokens", u.drafted_tokens},
                            {"accepted_tokens", u.accepted_tokens},
                            {"steps", u.steps}};
  return o;
}

// Prints the first choice as it comes; further ones when they are complete.
Result<void> stream(engine::EngineImpl& engine, Request request) {
  std::mutex mutex;
  std::condition_variable done;
  if (auto wrong = engine.check(request.sampling)) return fail(Code::kInvalid, "{}", wrong->message);
  int open = request.sampling.n;
  std::vector<std::string> texts(static_cast<size_t>(open));
  std::string error;
  bool is_user_error = false;
  auto sink = [&](const TokenEvent& e) {
    if (e.choice == 0 && !e.text.empty()) {
      std::fwrite(e.text.data(), 1, e.text.size(), stdout);
      std::fflush(stdout);
    }
    std::lock_guard lock(mutex);
    texts[static_cast<size_t>(e.choice)] += e.text;
    if (e.finish_reason == FinishReason::kNone) return;
    if (e.finish_reason == FinishReason::kError) error = e.error, is_user_error = e.is_user_error;
    --open;
    done.notify_one();
  };
  auto id = engine.submit(std::move(request), sink);
  if (!id) return fail(id.failure().is_user_error ? Code::kInvalid : Code::kInternal, "{}", id.failure().message);
  std::unique_lock lock(mutex);
  bool cancelled = false;
  while (open > 0) {
    done.wait_for(lock, std::chrono::milliseconds(50));
    if (interrupted && !cancelled) engine.cancel(*id), cancelled = true;
  }
  if (is_user_error && texts[0].empty()) return fail(Code::kInvalid, "{}", error);
  std::fputc('\n', stdout);
  for (size_t i = 1; i < texts.size(); ++i) std::printf("--- %zu\n%s\n", i, texts[i].c_str());
  if (!error.empty()) return fail(Code::kInternal, "{}", error);
  return {};
}

Result<void> generate(GenerateOptions& options) {
  if (options.prints_json || !isatty(STDERR_FILENO)) options.engine.is_quiet = true;
  DI_TRY(auto engine, options.engine.make());
  DI_TRY(Prompt prompt, make_prompt(options, *engine));
  Request request{.prompt = prompt.ids, .sampling = options.sampling.get()};
  DI_TRY(request.sampling.so_args, options.grammar.get());
  if (prompt.constraint) {
    if (request.sampling.so_args) {
      return fail(Code::kInvalid,
                  "{} asks for the form of its answer itself; --json-schema and the like cannot be added",
                  options.chat_file);
    }
    request.sampling.so_args = prompt.constraint;
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  if (!options.prints_json) return stream(*engine, std::move(request));
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  auto outputs = engine->generate(std::move(requests), [](int64_t) { return !interrupted; });
  const CompletionOutput& first = outputs.front().outputs.front();
  if (first.finish_reason == FinishReason::kError) return fail(Code::kInvalid, "{}", first.error);
  std::printf("%s\n", json::dump(to_json(outputs.front(), prompt)).c_str());
  return {};
}

}  // namespace

void add_generate(Command& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("generate", "continue a prompt");
  options->engine.add_to(command);
  options->sampling.add_to(command);
  options->grammar.add_to(command);
  command.option("--prompt", options->prompt, "text to continue; control tokens in it are read as such");
  command.option("--ids", options->ids_file, "file with a JSON list of token ids");
  command.option("--chat", options->chat_file, "file with a chat request (messages, tools, ...)");
  command.flag("--json", options->prints_json, "print one JSON object instead of text");
  command.callback([options, &exit_code] {
    if (auto done = generate(*options); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
