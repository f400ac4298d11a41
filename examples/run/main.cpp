// `example NAME [SEED [RANKS]]`: runs one of the examples on ranks that are threads of this process. Without a name it lists them.
#include <cstdlib>
#include <exception>
#include <iostream>

#include "comm/local/local.h"
#include "comm/world.h"
#include "examples/examples.h"
#include "task/deployer.h"

int main(int count, char** words) try {
  using namespace cairn;
  const std::string name = count > 1 ? words[1] : "";
  const uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1;
  const int ranks = count > 3 ? std::atoi(words[3]) : 1;
  for (const examples::Example& example : examples::examples()) {
    if (example.name != name) {
      if (name.empty()) std::cout << example.name << ": " << example.about << '\n';
      continue;
    }
    examples::Outcome outcome;
    const auto ended = comm::LocalNetwork(ranks).run([&](comm::World& world) {
      task::Deployer deployer(world, {.seed = seed});
      const examples::Outcome found = example.run(deployer, /*quick=*/false);
      if (world.rank() == 0) outcome = found;
    });
    for (const std::exception_ptr& error : ended)
      if (error) std::rethrow_exception(error);
    std::cout << outcome.measure << ": " << outcome.reached << " (baseline " << outcome.baseline << ", "
              << (outcome.at_most ? "at most " : "at least ") << outcome.target << " was to be reached: " << (outcome.met() ? "yes" : "no")
              << ")\n";
    return outcome.met() ? 0 : 1;
  }
  return name.empty() ? 0 : 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 3;
}
