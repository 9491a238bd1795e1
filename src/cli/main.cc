// The `deepinfer` command: one binary, one subcommand a job.

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  deepinfer::init_log("info");
  CLI::App app{"DeepSeek-V4.1-Flash inference on CPUs and GPUs", "deepinfer"};
  app.require_subcommand(1);
  int exit_code = 0;
  // One line a command, in alphabetical order: deepinfer::add_<name>(app, exit_code);
  deepinfer::add_bench(app, exit_code);
  deepinfer::add_chat(app, exit_code);
  deepinfer::add_eval(app, exit_code);
  deepinfer::add_generate(app, exit_code);
  deepinfer::add_inspect(app, exit_code);
  deepinfer::add_logits(app, exit_code);
  deepinfer::add_make_random(app, exit_code);
  deepinfer::add_plan(app, exit_code);
  deepinfer::add_render(app, exit_code);
  deepinfer::add_settings(app, exit_code);
  deepinfer::add_tokenize(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    return deepinfer::report({deepinfer::Code::kInvalid, std::string(e.what()) + " (--help lists the options)"});
  }
  return exit_code;
}
