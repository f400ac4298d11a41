// `cairn prune`.
#include "study/prune/prune.h"

#include "cli/environment.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "lab/ranks_of_study.h"

namespace cairn::lab {

int prune_command(const cli::StudyArguments& a) {
  const study::PruneRecipe recipe = study::read_prune(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path cache = cli::cache_folder();
  return run_on_ranks(a, [&](comm::World& world, int threads, const base::Stop& stop) {
    const study::PruneSetup setup{
        .out = study_directory(a), .cache = cache.empty() ? cache : cache / "data", .threads = threads, .device = a.device};
    return study::to_tables(study::run_prune(world, recipe, setup, stop));
  });
}

}  // namespace cairn::lab
