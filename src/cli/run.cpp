// The command line: one place where a command is chosen, and where errors become messages and exit codes.
#include <csignal>
#include <cstdio>

#include "base/check.h"
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "memory/host_allocator.h"

namespace cairn::cli {
namespace {

int report(const std::string& sentence, int code) {
  std::fprintf(stderr, "cairn: %s\n", sentence.c_str());
  return code;
}

int run_command(const Arguments& arguments, const std::vector<std::string>& command_line) {
  switch (arguments.command) {
    case Command::train:
      return train_command(arguments.train, command_line);
    case Command::generate:
      return generate_command(arguments.generate);
    case Command::chat:
      return chat_command(arguments.chat);
    case Command::eval:
      return eval_command(arguments.eval);
    case Command::replay:
      return replay_command(arguments.replay);
    case Command::tokenize:
      return tokenize_command(arguments.tokenize);
    case Command::snapshot:
      return snapshot_command(arguments.snapshot);
    case Command::logits:
      return logits_command(arguments.logits);
    case Command::data:
      return data_command(arguments.data);
    case Command::key:
      return key_command(arguments.key);
    case Command::doctor:
      return doctor_command();
    case Command::version:
      return version_command();
    case Command::reference:
      return reference_command();
    case Command::completion:
      return completion_command(arguments.completion);
    case Command::prove:
      return prove_command(arguments.prove);
    case Command::bench:
      return bench_command(arguments.bench);
  }
  CAIRN_CHECK(false, "command {}", static_cast<int>(arguments.command));
}

}  // namespace

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that has gone is an error of that write, not the end of training
  memory::install_host_allocator();
  try {
    const std::optional<Arguments> arguments = parse_arguments(argc, argv);
    return arguments ? run_command(*arguments, {argv + 1, argv + argc}) : 0;
  } catch (const Error& error) {
    // The ranks of a machine refuse wrong input alike; the user hears it once.
    const bool said = error.kind() == Error::Kind::bad_input && variable("CAIRN_LOCAL_RANK").value_or("0") != "0";
    return said ? error.exit_code() : report(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory: try a smaller train.micro_batch or fewer ranks (--nproc); `cairn train --dry-run` shows what a run needs",
                  3);
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  }
}

}  // namespace cairn::cli
