#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/lab_program.h"
#include "examples/examples.h"
#include "lab/commands.h"
#include "study/benches.h"
#include "study/claims.h"

namespace cairn::lab {
namespace {

int run_command(const cli::Arguments& arguments, const std::vector<std::string>& command_line) {
  switch (arguments.command) {
    case cli::Command::prove:
      return prove_command(arguments.prove);
    case cli::Command::bench:
      return bench_command(arguments.bench);
    case cli::Command::study:
      return study_command(arguments.study);
    case cli::Command::prune:
      return prune_command(arguments.prune);
    case cli::Command::unlearn:
      return unlearn_command(arguments.unlearn, command_line);
    case cli::Command::supernet:
      return supernet_command(arguments.supernet);
    case cli::Command::example:
      return example_command(arguments.example);
    default:
      base::fail_input("cairn-lab {}: no command of this program, which has prove, bench, study, prune, unlearn, supernet and example: use cairn {}",
                       command_line.front(), command_line.front());
  }
}

int list_names() {
  base::Terminal terminal;
  for (const study::Proof& proof : study::proofs()) terminal.line("prove " + proof.slug);
  for (const study::Bench& bench : study::benches()) terminal.line("bench " + bench.name);
  for (const examples::Example& example : examples::examples()) terminal.line("example " + example.name);
  return 0;
}

}  // namespace

std::string cairn_program() {
  const std::filesystem::path program = cli::own_program().parent_path() / "cairn";
  if (!std::filesystem::exists(program)) base::fail_input("{}: not there, and cairn-lab starts it: ./cairn build cairn", program.string());
  return program.string();
}

int run(int argc, char** argv) {
  return cli::run_guarded([&] {
    if (argc == 2 && std::string_view(argv[1]) == cli::kListNames) return list_names();
    const std::optional<cli::Arguments> arguments = cli::parse_arguments(argc, argv);
    return arguments ? run_command(*arguments, {argv + 1, argv + argc}) : 0;
  });
}

}  // namespace cairn::lab
