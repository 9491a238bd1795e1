// The `deepinfer` command: one binary, one subcommand a job.

#include "base/log.h"
#include "cli/command.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  deepinfer::init_log("info");
  return deepinfer::run_command_line(argc, argv, [](deepinfer::Command& app, int& exit_code) {
    // One line a command, in alphabetical order.
    deepinfer::add_bench(app, exit_code);
    deepinfer::add_chat(app, exit_code);
    deepinfer::add_eval(app, exit_code);
    deepinfer::add_generate(app, exit_code);
    deepinfer::add_inspect(app, exit_code);
    deepinfer::add_logits(app, exit_code);
    deepinfer::add_make_random(app, exit_code);
    deepinfer::add_plan(app, exit_code);
    deepinfer::add_render(app, exit_code);
    deepinfer::add_serve(app, exit_code);
    deepinfer::add_settings(app, exit_code);
    deepinfer::add_tokenize(app, exit_code);
  });
}
