#pragma once
#include <functional>
#include <optional>

#include "base/recipe.h"
#include "cli/launch/run_directory.h"

namespace cairn::comm {
class World;
}

namespace cairn::cli {

// What rank 0 decides for all: where the run writes, whether it goes on with what is there, and what the recipe's file says.
struct RunDecision {
  RunDirectory run;
  std::optional<base::Recipe::File> recipe;  // before what the command line adds; none: every key has its default
};

// On rank 0 calls `decide` and tells the others; elsewhere is told. So machines need not share a file system, or agree on what they see
// there.
RunDecision broadcast_decision(comm::World& world, const std::function<RunDecision()>& decide);

}  // namespace cairn::cli
