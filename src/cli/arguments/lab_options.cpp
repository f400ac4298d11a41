// The options of the commands that `cairn-lab` runs. `cairn` knows them too: for its help, and to refuse a wrong command line at once.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {

CLI::App* add_prove(CLI::App& app, ProveArguments& a) {
  CLI::App* command = app.add_subcommand("prove", "Measure the claims of a published system; without a name, list the proofs");
  command->add_option("slug", a.slug, "Which system");
  command->add_option("--seed", a.seed, "Of everything random in it")->check(not_negative())->capture_default_str();
  command
      ->add_option("--seeds", a.seeds, "Measure at so many seeds, from --seed on: the range of every figure, and at how many a claim holds")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--data", a.data, "A text file to measure on, instead of the built-in stories; deps, mosa: a folder of pictures too");
  CLI::Option* json = command->add_flag("--json", a.json, "Print the result as JSON, and nothing else");
  command->add_flag("--markdown", a.markdown, "Print the result as a table in Markdown, and nothing else")->excludes(json);
  command->add_flag("--full", a.full, "The long form, which may take more than five minutes");
  command->add_option("--pictures", a.pictures, "A folder for what a proof draws");
  command->add_option("--device", a.device, "cuda: the claims that are about a GPU, and only those")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag("--all", a.all, "Every proof, one after the other");
  command->footer("Exits with 0 only if every claim that could be measured holds, and at least one could.");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchArguments& a) {
  CLI::App* command = app.add_subcommand("bench", "Measure Cairn against a peer in one run; without a name, list the benches");
  command->add_option("name", a.name, "Which bench");
  command->add_option("--case", a.only, "One case of it");
  command->add_option("--data", a.data, "A text file to measure on, where a bench reads text");
  command->add_option("--steps", a.steps, "Steps of each run (gpu)")->check(positive());
  command->add_option("--precision", a.precision, "Number format of passes (gpu)");
  command->add_option("--limit", a.limit_s, "Seconds that a case may take (gpu)")->check(positive());
  command->add_option("--set", a.sets, "A recipe key of Cairn's own runs: --set train.cuda_graph=true (gpu); may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--kernels", a.kernels, "Record which kernels a step spends its time in, Cairn's and compiled (gpu, with --out)");
  command->add_option("--out", a.out, "Where pictures and measurements are kept (gpu)");
  command->add_flag("--json", a.json, "Print the rows as JSON, and nothing else");
  command->footer("A ratio above 1 means ours is better. Exits with 0 only if every goal is reached.");
  return command;
}

CLI::App* add_study(CLI::App& app, StudyArguments& a) {
  CLI::App* command = app.add_subcommand("study", "Train many models as one study, and compare them");
  command
      ->add_option(
          "kind", a.kind,
          "Which study: hdee (an ensemble of domain experts at one total compute budget), coded (several models in turn, by "
          "workers of which some are late), parscale (the scaling law of parallel streams, fitted to a table of losses), value (what each "
          "training example or source is worth), iterate (selection in rounds of training and scoring), lifelong (datasets one "
          "after the other, with a bounded pool)")
      ->required()
      ->check(CLI::IsMember({"hdee", "coded", "parscale", "value", "iterate", "lifelong"}));
  command->add_option("recipe", a.recipe, "A recipe (TOML) with a [study]; parscale: a CSV file with columns parameters, streams, loss")
      ->required();
  command->add_option("--out", a.out, "The study directory; a study that is there is resumed (default: studies/RECIPE)");
  command->add_option("--set", a.sets, "A recipe key: --set study.mode=steps; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--nproc", a.nproc, "Processes that work on it (value, iterate, lifelong)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--dry-run", a.dry_run, "Show the experts, steps and cost, and train nothing");
  command->add_flag("--json", a.json, "Print results.json, and nothing else");
  return command;
}

CLI::App* add_prune(CLI::App& app, StudyArguments& a) {
  CLI::App* command = app.add_subcommand("prune", "Remove weights of a trained model, and win its quality back with a sliver of training");
  command->add_option("recipe", a.recipe, "A recipe (TOML) with model.from, data and a [prune]")->required();
  command->add_option("--out", a.out, "Where model/ and what leads to it go; a job that is there is resumed (default: pruned/RECIPE)");
  command->add_option("--set", a.sets, "A recipe key: --set prune.sparsity=0.6; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--nproc", a.nproc, "Processes that share the samples")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--device", a.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_flag("--json", a.json, "Print results.json, and nothing else");
  return command;
}

CLI::App* add_example(CLI::App& app, ExampleArguments& a) {
  CLI::App* command = app.add_subcommand("example", "Run one of the programs in examples/; without a name, list them");
  command->add_option("name", a.name, "Which example");
  command->add_option("--seed", a.seed, "Of everything random in it")->check(not_negative())->capture_default_str();
  command->add_option("--ranks", a.ranks, "Ranks, as threads of one process")->check(CLI::Range(1, 4096))->capture_default_str();
  command->add_option("--tp", a.tp, "Of these, ranks that split the parameters of one replica")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->footer("Exits with 0 only if the example reaches its target.");
  return command;
}

}  // namespace cairn::cli
