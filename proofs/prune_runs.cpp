#include "proofs/prune_runs.h"

#include <exception>
#include <utility>

#include "base/log.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"

namespace cairn::study {

PruneResult prune_on_ranks(const PruneRecipe& recipe, const PruneSetup& setup, int ranks) {
  comm::LocalOptions quiet;
  quiet.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  const base::Stop never;
  PruneResult result;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, quiet).run([&](comm::World& world) {
         PruneResult mine = run_prune(world, recipe, setup, never);
         if (world.rank() == 0) result = std::move(mine);
       }))
    if (error) std::rethrow_exception(error);
  return result;
}

}  // namespace cairn::study
