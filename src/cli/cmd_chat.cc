// deepinfer chat: talk to the model in a terminal.
//
//   The answer streams; reasoning is dimmed; a status line under each answer gives tokens, speed and draft acceptance.
//   /think on|off, /system TEXT, /new, /quit; Ctrl-C stops an answer, Ctrl-D leaves.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <mutex>

#include <unistd.h>
#include "base/json.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "text/chat.h"

namespace deepinfer {
namespace {

struct ChatOptionsCli {
  EngineFlags engine;
  SamplingFlags sampling{1024};
  std::string system;
  bool thinks = false;
};

std::atomic<bool> interrupted{false};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class ChatSession {
 public:
  ChatSession(engine::EngineImpl& engine, const ChatOptionsCli& options)
      : engine_(engine),
        sampling_(options.sampling.get()),
        is_terminal_(isatty(STDOUT_FILENO) != 0),
        thinks_(options.thinks) {
    set_system(options.system);
  }

  Result<void> loop() {
    if (is_terminal_) std::puts("Type a message; /think on|off, /system TEXT, /new, /quit. Ctrl-C stops an answer.");
    std::string line;
    while (true) {
      if (is_terminal_) std::fputs("\n\033[1m> \033[0m", stdout), std::fflush(stdout);
      if (!std::getline(std::cin, line)) return {};
      if (line == "/quit") return {};
      if (line.empty() || command(line)) continue;
      messages_.push_back(json::object{{"role", "user"}, {"content", line}});
      auto answered = answer();
      if (!answered) {
        messages_.pop_back();  // the message stays unanswered; the next one starts from the same place
        std::fprintf(stderr, "deepinfer: %s\n", answered.error().message.c_str());
      }
    }
  }

 private:
  void set_system(const std::string& text) {
    messages_.clear();
    if (!text.empty()) messages_.push_back(json::object{{"role", "system"}, {"content", text}});
  }

  bool command(const std::string& line) {
    if (line == "/new") {
      messages_.clear();
    } else if (line == "/think on" || line == "/think off") {
      thinks_ = line == "/think on";
    } else if (line.starts_with("/system ")) {
      set_system(line.substr(8));
    } else if (line.starts_with("/")) {
      std::puts("commands: /think on|off, /system TEXT, /new, /quit");
    } else {
      return false;
    }
    return true;
  }

  // Prints pieces of the parsed answer; reasoning dimmed on a terminal.
  void show(const std::vector<text::OutputDelta>& deltas) {
    for (const text::OutputDelta& d : deltas) {
      parsed_.add(d);
      bool dim = d.kind != text::OutputDelta::Kind::kContent;
      if (is_terminal_ && dim != is_dim_) std::fputs(dim ? "\033[2m" : "\033[0m\n", stdout);
      is_dim_ = dim;
      if (is_terminal_ || !dim) std::fwrite(d.text.data(), 1, d.text.size(), stdout);
    }
    std::fflush(stdout);
  }

  Result<void> answer() {
    json::object body{{"messages", messages_}, {"thinking", json::object{{"type", thinks_ ? "enabled" : "disabled"}}}};
    DI_TRY(text::ChatRequest request, text::parse_chat_request(json::dump(body)));
    text::ChatPrompt prompt = text::render_chat(request);
    DI_TRY(std::vector<int32_t> ids, text::encode_prompt(engine_.tokenizer(), prompt));

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> pieces;
    std::optional<TokenEvent> last;
    auto begin = Clock::now();
    std::optional<Clock::time_point> first_token;
    auto id = engine_.submit({.prompt = std::move(ids), .sampling = sampling_}, [&](const TokenEvent& e) {
      std::lock_guard lock(mutex);
      pieces.push_back(e.text);
      if (!first_token) first_token = Clock::now();
      if (e.finish_reason != FinishReason::kNone) last = e;
      changed.notify_one();
    });
    if (!id) return fail(Code::kInvalid, "{}", id.failure().message);

    text::OutputParser parser(prompt.output);
    parsed_ = {};
    interrupted = false;
    bool cancelled = false, done = false;
    while (!done) {
      std::vector<std::string> ready;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return !pieces.empty(); });
        ready.swap(pieces);
        done = last.has_value();
      }
      if (interrupted && !cancelled) engine_.cancel(*id), cancelled = true;
      if (ready.empty() && !first_token) progress(begin);
      std::vector<text::OutputDelta> deltas;
      for (const std::string& piece : ready) parser.push(piece, deltas);
      if (done) parser.finish(deltas);
      if (!deltas.empty()) clear_progress(), show(deltas);
    }
    if (is_terminal_ && is_dim_) std::fputs("\033[0m", stdout);
    is_dim_ = false;
    std::fputc('\n', stdout);
    if (last->finish_reason == FinishReason::kError) return fail(Code::kInternal, "{}", last->error);
    status(last->usage, begin, *first_token);
    messages_.push_back(json::object{{"role", "assistant"}, {"content", parsed_.content}});
    return {};
  }

  void progress(Clock::time_point begin) {
    if (!is_terminal_ || seconds_since(begin) < 0.5) return;
    std::printf("\r\033[2mreading the prompt, %.1f s\033[0m", seconds_since(begin));
    std::fflush(stdout);
    shows_progress_ = true;
  }
  void clear_progress() {
    if (shows_progress_) std::fputs("\r\033[K", stdout);
    shows_progress_ = false;
  }

  void status(const Usage& u, Clock::time_point begin, Clock::time_point first_token) {
    if (!is_terminal_) return;
    double seconds = std::max(1e-6, seconds_since(first_token));
    double first_ms = std::chrono::duration<double, std::milli>(first_token - begin).count();
    std::printf("\033[2m%lld tokens, %.1f tokens/s, first after %.0f ms, prompt %lld (%lld cached)",
                static_cast<long long>(u.completion_tokens), static_cast<double>(u.completion_tokens) / seconds,
                first_ms, static_cast<long long>(u.prompt_tokens), static_cast<long long>(u.cached_tokens));
    if (u.drafted_tokens > 0)
      std::printf(", drafts accepted %.0f %%",
                  100.0 * static_cast<double>(u.accepted_tokens) / static_cast<double>(u.drafted_tokens));
    std::printf("\033[0m\n");
  }

  engine::EngineImpl& engine_;
  SamplingParams sampling_;
  bool is_terminal_, thinks_;
  json::array messages_;
  text::ParsedOutput parsed_;
  bool is_dim_ = false, shows_progress_ = false;
};

Result<void> chat(ChatOptionsCli& options) {
  if (!isatty(STDERR_FILENO)) options.engine.is_quiet = true;
  DI_TRY(auto engine, options.engine.make());
  struct sigaction action{};  // without SA_RESTART, so that Ctrl-C at the prompt leaves getline
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  return ChatSession(*engine, options).loop();
}

}  // namespace

void add_chat(Command& app, int& exit_code) {
  auto options = std::make_shared<ChatOptionsCli>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("chat", "talk to the model");
  options->engine.add_to(command);
  options->sampling.add_to(command);
  command.option("--system", options->system, "system message");
  command.flag("--think", options->thinks, "let the model reason before it answers");
  command.callback([options, &exit_code] {
    if (auto done = chat(*options); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
