#include "cli/command.h"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace deepinfer {

int report(const Error& error) {
  std::fprintf(stderr, "deepinfer: %s\n", error.message.c_str());
  return exit_code(error);
}

Option Option::required() {
  option_->required();
  return *this;
}
Option Option::show_default() {
  option_->capture_default_str();
  return *this;
}
Option Option::in_range(int64_t least, int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
Option Option::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}
Option Option::non_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}
Option Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}
Option Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}
Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Command Command::subcommand(const std::string& name, const std::string& help) {
  return Command(*app_->add_subcommand(name, help));
}
template <typename T>
Option Command::option(const std::string& name, T& value, const std::string& help) {
  return Option(app_->add_option(name, value, help));
}
Option Command::flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}
std::vector<OptionRow> Command::option_rows(const std::string& subcommand) const {
  std::vector<OptionRow> rows;
  for (const CLI::Option* o : app_->get_subcommand(subcommand)->get_options()) {
    if (o != app_->get_subcommand(subcommand)->get_help_ptr())
      rows.push_back({o->get_name(), o->get_default_str(), o->get_description()});
  }
  return rows;
}

void Command::callback(std::function<void()> run) {
  app_->callback([app = app_, run = std::move(run)] {
    if (app->get_subcommands().empty()) run();
  });
}

template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, float&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, int&, const std::string&);
template Option Command::option(const std::string&, int64_t&, const std::string&);
template Option Command::option(const std::string&, uint64_t&, const std::string&);
template Option Command::option(const std::string&, std::optional<int>&, const std::string&);
template Option Command::option(const std::string&, std::optional<int64_t>&, const std::string&);
template Option Command::option(const std::string&, std::optional<uint64_t>&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);

int run_command_line(int argc, char** argv, const std::function<void(Command& app, int& exit_code)>& declare) {
  CLI::App app{"DeepSeek-V4.1-Flash inference on CPUs and GPUs", "deepinfer"};
  app.require_subcommand(1);
  Command command(app);
  int exit_code = 0;
  declare(command, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    return report({Code::kInvalid, std::string(e.what()) + " (--help lists the options)"});
  }
  return exit_code;
}

}  // namespace deepinfer
