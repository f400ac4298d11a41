// The options of `cairn supernet`.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {
namespace {

CLI::App* add_supernet_action(CLI::App* supernet, SupernetArguments& a, const std::string& name, const std::string& help) {
  CLI::App* action = supernet->add_subcommand(name, help);
  action->callback([&a, name] { a.action = name; });
  action->add_option("run", a.run, "The directory of a run with a [supernet]")->required();
  action->add_option("--set", a.sets, "A recipe key to change: --set data.path=images; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  action->add_option("--device", a.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  return action;
}

}  // namespace

CLI::App* add_supernet(CLI::App& app, SupernetArguments& a) {
  CLI::App* command = app.add_subcommand("supernet", "Networks of a chosen size out of one that contains many");
  command->require_subcommand(1);

  CLI::App* search = add_supernet_action(command, a, "search", "Find the best networks within a bound, by evolution");
  search->add_option("--flops", a.flops, "Most FLOPs of a forward pass, for one sample or token: 200M, 1.5G (default: no bound)");
  search->add_option("--population", a.population, "Networks of a generation")->check(CLI::Range(2, 10000))->capture_default_str();
  search->add_option("--generations", a.generations, "Generations")->check(CLI::Range(1, 10000))->capture_default_str();
  search->add_option("--calibration", a.calibration, "Training samples for the batch norms of each network")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  search->add_option("--seed", a.seed, "Of the random choices")->check(not_negative())->capture_default_str();
  search->add_flag("--json", a.json, "Print all networks as JSON, and nothing else");
  search->footer("Prints those that no other network beats in both FLOPs and loss. Each is measured on the run's held-out samples.");

  CLI::App* write = add_supernet_action(command, a, "export", "Write one network as a model of its own");
  write->add_option("--subnet", a.subnet, "Depths and widths, as search prints them: \"2,3:64,32,64,64,32\"; of a decoder \"3:176\"")
      ->required();
  write->add_option("--out", a.out, "A new directory")->required();
  write->add_option("--dtype", a.dtype, "fp32, bf16 or fp16")->check(CLI::IsMember({"fp32", "bf16", "fp16"}))->capture_default_str();
  return command;
}

}  // namespace cairn::cli
