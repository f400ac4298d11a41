// The recipe of `cairn train`: what the command line says of it, and where it comes from.
#pragma once
#include <memory>
#include <string>

#include "base/recipe.h"
#include "cli/arguments.h"
#include "cli/launch/run_directory.h"

namespace cairn::parallel {
struct Plan;
}

namespace cairn::cli {

RunRequest request_of(const TrainArguments& a);

// The recipe that a run starts from: the file, or the resumed run's own recipe if no file is given.
RunDecision decide(const TrainArguments& a, const RunDirectory& run);

// Without --nproc, the mesh decides the number of ranks.
TrainArguments with_ranks_of_mesh(TrainArguments a);
// The same run where machines are lost: the ranks that are left decide the number of replicas.
TrainArguments with_free_replicas(TrainArguments a);
// A later generation of a run reads the recipe that the run saved: the file may have changed since.
TrainArguments without_recipe_file(TrainArguments a);

// The decided recipe with the keys that the command line sets.
base::Recipe make_recipe(const TrainArguments& a, const RunDecision& decision);

// Reads the plan of --plan and takes the number of ranks from it.
std::shared_ptr<const parallel::Plan> read_given_plan(TrainArguments& a);

// The number of islands, for code that runs before the recipe is read. The agent, which has read it, exports CAIRN_ISLANDS to its ranks.
int islands_of(const TrainArguments& a);

// The options that must be the same on all machines, as typed. Machines compare it when they meet.
std::string fingerprint(const TrainArguments& a);

}  // namespace cairn::cli
