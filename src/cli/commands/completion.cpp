// `cairn completion`: the script that lets a shell complete the command line.
#include "cli/completion.h"

#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "study/benches.h"
#include "study/claims.h"
#include "train/settings.h"

namespace cairn::cli {

int completion_command(const CompletionArguments& a) {
  std::vector<CommandSpec> commands = command_specs();
  for (CommandSpec& command : commands) {
    if (command.path == "prove")
      for (const study::Proof& proof : study::proofs()) command.arguments.front().choices.push_back(proof.slug);
    if (command.path == "bench")
      for (const study::Bench& bench : study::benches()) command.arguments.front().choices.push_back(bench.name);
  }
  base::Terminal().line(completion_script(a.shell, commands, key_specs(train::recipe_sections())));
  return 0;
}

}  // namespace cairn::cli
