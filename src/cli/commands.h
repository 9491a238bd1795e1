// The list of subcommands; main.cc calls each add function once.
#pragma once

namespace CLI {
class App;
}

namespace deepinfer {

// One line a command, in alphabetical order: void add_<name>(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_logits(CLI::App& app, int& exit_code);
void add_make_random(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_render(CLI::App& app, int& exit_code);
void add_settings(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);

}  // namespace deepinfer
