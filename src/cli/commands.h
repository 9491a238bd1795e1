// The list of subcommands; main.cc calls each add function once.
#pragma once

namespace deepinfer {
class Command;

// One line a command, in alphabetical order: void add_<name>(Command& app, int& exit_code);
void add_bench(Command& app, int& exit_code);
void add_bench_serve(Command& bench, int& exit_code);  // below bench
void add_chat(Command& app, int& exit_code);
void add_eval(Command& app, int& exit_code);
void add_generate(Command& app, int& exit_code);
void add_inspect(Command& app, int& exit_code);
void add_logits(Command& app, int& exit_code);
void add_make_random(Command& app, int& exit_code);
void add_plan(Command& app, int& exit_code);
void add_render(Command& app, int& exit_code);
void add_serve(Command& app, int& exit_code);
void add_settings(Command& app, int& exit_code);
void add_tokenize(Command& app, int& exit_code);

}  // namespace deepinfer
