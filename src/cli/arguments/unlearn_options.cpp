// The options of `cairn unlearn`.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {
namespace {

CLI::App* add_action(CLI::App* unlearn, UnlearnArguments& a, const std::string& name, const std::string& help) {
  CLI::App* action = unlearn->add_subcommand(name, help);
  action->callback([&a, name] { a.action = name; });
  return action;
}

void add_store(CLI::App* action, UnlearnArguments& a) {
  action->add_option("store", a.store, "The folder that `cairn unlearn train` made")->required();
}

// How stages are trained.
void add_training(CLI::App* action, UnlearnArguments& a) {
  action->add_option("--nproc", a.launch.nproc, "Ranks that train each stage together, on this machine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  action->add_option("--device", a.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
}

void add_json(CLI::App* action, UnlearnArguments& a) { action->add_flag("--json", a.json, "Print the result as JSON, and nothing else"); }

}  // namespace

CLI::App* add_unlearn(CLI::App& app, UnlearnArguments& a) {
  CLI::App* command = app.add_subcommand("unlearn", "A model from which training records can be deleted, exactly");
  command->require_subcommand(1);

  CLI::App* train = add_action(command, a, "train", "Make a store: cut the records into slices, and train adapters on them in stages");
  train->add_option("recipe", a.recipe, "A recipe (TOML) with an [unlearning]")->required();
  train->add_option("--out", a.store, "The store; one that is there is continued")->required();
  train->add_option("--set", a.sets, "A recipe key: --set unlearning.shards=4; may be repeated")->allow_extra_args(false)->take_all();
  train->add_option("--without", a.without, "Records that count as deleted from the beginning: they are never read into the store")
      ->check(not_negative());
  add_training(train, a);

  CLI::App* remove = add_action(command, a, "delete", "Delete records: what depends on them is not served any more, at once");
  add_store(remove, a);
  remove->add_option("records", a.records, "Their numbers, from 0 over all files of data.path")->check(not_negative());
  remove->add_option("--where", a.where, "FIELD=VALUE: all records with this value of a field");
  add_json(remove, a);

  CLI::App* audit = add_action(command, a, "audit", "Show what the served adapters depend on, and check that nothing deleted is left");
  add_store(audit, a);
  add_json(audit, a);
  audit->footer("Exits with 1 if anything is not as it must be.");

  CLI::App* repair = add_action(command, a, "repair", "Train again, without deleted records, the stages that deletions have taken");
  add_store(repair, a);
  add_training(repair, a);
  repair->footer("The store answers all along. Several of these may run at once; each takes orders that no other has.");

  CLI::App* capacity = add_action(command, a, "capacity", "Show how many deletions the store survives before it must be repaired");
  add_store(capacity, a);
  capacity->add_option("--seed", a.seed, "Of the deletions that are simulated")->check(not_negative())->capture_default_str();
  return command;
}

}  // namespace cairn::cli
