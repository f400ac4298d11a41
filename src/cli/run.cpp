// The program `cairn`: chooses the command, and turns errors into messages and exit codes.
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/cause.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/lab_program.h"
#include "elastic/keeper.h"
#include "memory/host_allocator.h"

namespace cairn::cli {
namespace {

constexpr size_t kSentenceBytes = 1600;

// Prints one sentence. It may quote a file, so it is cut to a readable length and control characters are escaped.
int report(std::string_view sentence, int code) {
  std::string text = base::printable(sentence);
  if (text.size() > kSentenceBytes)
    text.replace(kSentenceBytes / 2, text.size() - kSentenceBytes, " ... ");  // the end often says what is wrong
  std::fprintf(stderr, "cairn: %s\n", text.c_str());
  return code;
}

int report(const Error& error) {
  const bool damaged = error.kind() == Error::Kind::corrupt_file;
  return report(damaged ? fmt::format("{} (damaged, or not what it should be: take another copy)", error.what()) : error.what(),
                error.exit_code());
}

// A path that cannot exist is wrong input (exit code 2); a failing disk is a failed run (3).
int report(const std::filesystem::filesystem_error& error) {
  bool wrong = false;
  for (const std::errc one : {std::errc::too_many_symbolic_link_levels, std::errc::filename_too_long, std::errc::permission_denied,
                              std::errc::not_a_directory, std::errc::no_such_file_or_directory, std::errc::invalid_argument})
    wrong = wrong || error.code() == one;
  return report(fmt::format("{}: {}", error.path1().string(), error.code().message()), wrong ? 2 : 3);
}

int run_command(const Arguments& arguments, const std::vector<std::string>& command_line) {
  switch (arguments.command) {
    case Command::train:
      return train_command(arguments.train, command_line);
    case Command::generate:
      return generate_command(arguments.generate, command_line);
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
    case Command::verify:
      return verify_command(arguments.verify);
    case Command::plan:
      return plan_command(arguments.plan);
    case Command::schedule:
      return schedule_command(arguments.schedule);
    case Command::logits:
      return logits_command(arguments.logits);
    case Command::data:
      return data_command(arguments.data);
    case Command::select:
      return select_command(arguments.select, command_line);
    case Command::experts:
      return experts_command(arguments.experts);
    case Command::key:
      return key_command(arguments.key);
    case Command::diagnose:
      return diagnose_command(arguments.diagnose);
    case Command::doctor:
      return doctor_command();
    case Command::version:
      return version_command();
    case Command::reference:
      return reference_command();
    case Command::completion:
      return completion_command(arguments.completion);
    case Command::prove:
    case Command::bench:
    case Command::study:
    case Command::prune:
    case Command::unlearn:
    case Command::supernet:
    case Command::example:
      return exec_lab(command_line);
  }
  CAIRN_CHECK(false, "command {}", static_cast<int>(arguments.command));
}

}  // namespace

int run_guarded(const std::function<int()>& program) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of that write, not the end of training
  memory::install_host_allocator();
  try {
    return program();
  } catch (const Error& error) {
    // All ranks of a machine refuse the same wrong input; only local rank 0 reports it.
    const bool said = error.kind() == Error::Kind::bad_input && variable("CAIRN_LOCAL_RANK").value_or("0") != "0";
    return said ? error.exit_code() : report(error);
  } catch (const std::bad_alloc&) {
    return report("out of memory: try a smaller train.micro_batch or fewer ranks (--nproc); `cairn train --dry-run` shows what a run needs",
                  3);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error);
  } catch (const c10::OutOfMemoryError& error) {
    return report(explain_gpu_out_of_memory(error.what_without_backtrace()), 3);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), 3);
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  }
}

int run(int argc, char** argv) {
  return run_guarded([&] {
    if (const auto keeper = variable(elastic::kKeeperVariable)) return elastic::keeper_main(*keeper);
    const std::optional<Arguments> arguments = parse_arguments(argc, argv);
    return arguments ? run_command(*arguments, {argv + 1, argv + argc}) : 0;
  });
}

}  // namespace cairn::cli
