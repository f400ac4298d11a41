// The program `cairn-lab`: commands that are whole jobs of their own, and that users of `cairn train` need not compile. Its command line is
// that of `cairn`, which starts it for these commands.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "cli/arguments.h"

namespace cairn::lab {

// Parses the arguments, runs the command, and returns the exit code (cli::run_guarded).
int run(int argc, char** argv);

int prove_command(const cli::ProveArguments& a);
int bench_command(const cli::BenchArguments& a);
int study_command(const cli::StudyArguments& a);
int study_coded(const cli::StudyArguments& a);  // of which `cairn study coded` is one
int study_parscale(const cli::StudyArguments& a);
int study_value(const cli::StudyArguments& a);
int study_iterate(const cli::StudyArguments& a);
int study_lifelong(const cli::StudyArguments& a);
int unlearn_command(const cli::UnlearnArguments& a, const std::vector<std::string>& command_line);
int prune_command(const cli::StudyArguments& a);
int supernet_command(const cli::SupernetArguments& a);
int example_command(const cli::ExampleArguments& a);

// The directory of a study: --out, or studies/RECIPE; of pruning pruned/RECIPE.
std::filesystem::path study_directory(const cli::StudyArguments& a);

// The file of `cairn`, beside this program: jobs start it to train and to generate.
std::string cairn_program();

}  // namespace cairn::lab
