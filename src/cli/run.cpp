// The command line: one list of commands, one place where errors become messages and exit codes.
#include <algorithm>
#include <csignal>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "memory/host_allocator.h"

namespace cairn::cli {
namespace {

int report(const std::string& sentence, int code) {
  std::fprintf(stderr, "cairn: %s\n", sentence.c_str());
  return code;
}

// The parser would only say that a command is missing.
void check_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].starts_with("-")) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), arguments[0]) == names.end()) base::fail_unknown("command", arguments[0], names);
}

}  // namespace

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that has gone is an error of that write, not the end of training
  memory::install_host_allocator();
  CLI::App app{"Cairn trains language models on whatever machines there are.", "cairn"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help on every command");
  app.footer(
      "Run `cairn COMMAND --help` for what a command takes, and `cairn reference` for every recipe key.\n"
      "Exit codes: 0 done, 2 wrong recipe or arguments, 3 failed run, 4 lost peer.");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::vector<Command> commands{add_train(app, arguments), add_generate(app), add_doctor(app), add_version(app),
                                      add_reference(app),        add_prove(app),    add_bench(app)};
  try {
    check_command(app, arguments);
    app.parse(argc, argv);
    size_t index = 0;
    for (const CLI::App* command : app.get_subcommands({})) {
      if (command->parsed()) return commands.at(index)();
      ++index;
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return report(std::string(error.what()) + " (cairn --help lists what there is)", 2);
  } catch (const Error& error) {
    // All ranks refuse wrong input alike; the user hears it once.
    const bool said = error.kind() == Error::Kind::bad_input && variable("CAIRN_RANK").value_or("0") != "0";
    return said ? error.exit_code() : report(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory: try a smaller train.micro_batch or fewer ranks (--nproc); `cairn train --dry-run` shows what a run needs",
                  3);
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  }
}

}  // namespace cairn::cli
