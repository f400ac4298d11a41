// `cairn completion`: the script that lets a shell complete the command line.
#include "cli/completion.h"

#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/lab_program.h"
#include "train/settings.h"

namespace cairn::cli {

int completion_command(const CompletionArguments& a) {
  std::vector<CommandSpec> commands = command_specs();
  const auto names = lab_names();
  for (CommandSpec& command : commands)
    if (const auto found = names.find(command.path); found != names.end()) command.arguments.front().choices = found->second;
  base::Terminal().line(completion_script(a.shell, commands, key_specs(train::recipe_sections())));
  return 0;
}

}  // namespace cairn::cli
