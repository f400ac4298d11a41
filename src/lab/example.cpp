// `cairn example`: runs one of the programs in examples/ on ranks that are threads of this process.
#include <exception>
#include <vector>

#include <fmt/format.h>

#include "base/did_you_mean.h"
#include "base/terminal.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "examples/examples.h"
#include "lab/commands.h"
#include "task/deployer.h"

namespace cairn::lab {

int example_command(const cli::ExampleArguments& a) {
  base::Terminal terminal;
  std::vector<std::string> names;
  for (const examples::Example& example : examples::examples()) {
    names.push_back(example.name);
    if (a.name.empty()) terminal.line(fmt::format("  {:<20} {}", example.name, example.about));
    if (example.name != a.name) continue;
    examples::Outcome outcome;
    const auto ended = comm::LocalNetwork(a.ranks).run([&](comm::World& world) {
      task::Deployer deployer(world, {.seed = static_cast<uint64_t>(a.seed), .tp = a.tp});
      const examples::Outcome found = example.run(deployer, /*quick=*/false);
      if (world.rank() == 0) outcome = found;
    });
    for (const std::exception_ptr& error : ended)
      if (error) std::rethrow_exception(error);
    terminal.line(fmt::format("{}: {:.6g} (baseline {:.6g}, target: {} {:.6g}: {})", outcome.measure, outcome.reached, outcome.baseline,
                              outcome.at_most ? "at most" : "at least", outcome.target, outcome.met() ? "reached" : "missed"));
    return outcome.met() ? 0 : 1;
  }
  if (!a.name.empty()) base::fail_unknown("example", a.name, names);
  return 0;
}

}  // namespace cairn::lab
