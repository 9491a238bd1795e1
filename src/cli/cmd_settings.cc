// deepinfer settings: the effective environment, or the whole table as Markdown.

#include <cstdio>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "engine/settings.h"

namespace deepinfer {
namespace {

std::string options_markdown(const std::vector<OptionRow>& rows) {
  std::string text = "## Options of `deepinfer serve`\n\n| name | default | effect |\n| --- | --- | --- |\n";
  for (const OptionRow& r : rows) text += fmt::format("| `{}` | {} | {} |\n", r.name, r.default_value, r.help);
  return text;
}

}  // namespace

void add_settings(Command& app, int& exit_code) {
  auto prints_table = std::make_shared<bool>(false);  // owned by the callback, which outlives this function
  Command command =
      app.subcommand("settings", "check the DEEPINFER_* variables; --markdown prints every known setting");
  command.flag("--markdown", *prints_table, "print docs/settings.md");
  command.callback([prints_table, &exit_code, app] {
    if (*prints_table) {
      std::fputs((engine::settings_markdown() + options_markdown(app.option_rows("serve"))).c_str(), stdout);
      return;
    }
    auto settings = engine::read_settings();
    if (!settings) {
      exit_code = report(settings.error());
      return;
    }
    for (const std::string& note : settings->notes) std::printf("%s\n", note.c_str());
    std::printf("the environment is valid\n");
  });
}

}  // namespace deepinfer
