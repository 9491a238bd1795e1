// What the command line accepts: subcommands, options, flags. The one place that knows the parser (CLI11), whose inline
// code would otherwise cost every subcommand 12 seconds of compile time.
//
// Each subcommand lives in a file of its own, cmd_<name>.cc, and is listed in commands.h. add_<name> declares its
// options on `app` and sets a callback that stores the process exit code: 0 done, 1 internal failure, 2 something the
// user can fix (one sentence on stderr).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace deepinfer {
struct Error;

// Prints the error's sentence to stderr and returns its exit code.
int report(const Error& error);

// A declared option; every function returns the option itself. Values outside what is allowed end the parse with a
// sentence that names the option, the value and what is allowed.
class Option {
 public:
  Option required();
  Option show_default();                         // in --help
  Option in_range(int64_t least, int64_t most);  // both allowed
  Option positive();
  Option non_negative();
  Option one_of(const std::vector<std::string>& values);
  Option one_value_each();  // of a list: the option is repeated, it does not swallow the arguments that follow
  Option excludes(Option other);

 private:
  friend class Command;
  explicit Option(CLI::Option* option) : option_(option) {}
  CLI::Option* option_;
};

struct OptionRow {
  std::string name, default_value, help;
};

// The program or one subcommand. Values are bound by reference and must outlive the parse.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  Command subcommand(const std::string& name, const std::string& help);
  // T: std::string, float, double, int, int64_t, uint64_t, std::optional of the integers, std::vector<std::string>.
  template <typename T>
  Option option(const std::string& name, T& value, const std::string& help = "");
  Option flag(const std::string& name, bool& value, const std::string& help = "");
  // The options of one of its subcommands, in the order of --help.
  std::vector<OptionRow> option_rows(const std::string& subcommand) const;
  // Runs when the parse meets this subcommand and none of its own.
  void callback(std::function<void()> run);

 private:
  CLI::App* app_;
};

// Parses the arguments of the program and runs the subcommand they name. Returns the exit code.
int run_command_line(int argc, char** argv, const std::function<void(Command& app, int& exit_code)>& declare);

}  // namespace deepinfer
