// The options of `cairn experts`.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {

CLI::App* add_experts(CLI::App& app, ExpertsArguments& a) {
  CLI::App* command = app.add_subcommand("experts", "Which ranks hold which experts of a model");
  command->require_subcommand(1);
  CLI::App* place = command->add_subcommand("place", "Put experts that follow each other on one rank, by the routing of a text");
  place->add_option("dir", a.folder, "A run, a snapshot or a Hugging Face directory of a model with experts")->required();
  place->add_option("--data", a.data, "The text: whatever data.path reads")->required();
  place->add_option("--mesh", a.mesh, "The ranks along ep: ep=4")->required();
  place->add_option("--out", a.out, "The placement file to write")->required();
  place->add_option("--tokens", a.tokens, "Tokens of the trace; as many after them judge the result")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  place->add_option("--node-ranks", a.node_ranks, "Consecutive ranks of a machine: hops between machines cost twice; 0: one machine")
      ->check(not_negative())
      ->capture_default_str();
  place->add_option("--restarts", a.restarts, "Random placements that the solver starts from, beside two others")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  place->add_option("--trace", a.trace, "Write the routing trace too: int16 [tokens, layers], a NumPy file");
  place->add_option("--seed", a.seed, "Of the random placements")->check(not_negative())->capture_default_str();
  place->footer("Prints how often tokens change ranks before (experts by their numbers) and after.");
  return command;
}

}  // namespace cairn::cli
