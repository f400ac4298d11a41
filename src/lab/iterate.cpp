// `cairn study iterate`: selection in rounds of training and scoring.
#include "study/iterate.h"

#include "cli/environment.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "lab/ranks_of_study.h"

namespace cairn::lab {

int study_iterate(const cli::StudyArguments& a) {
  const study::IterateRecipe recipe = study::read_iterate(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path cache = cli::cache_folder();
  return run_on_ranks(a, [&](comm::World& world, int threads, const base::Stop& stop) {
    const study::StudySetup setup{.out = study_directory(a), .cache = cache.empty() ? cache : cache / "data", .threads = threads};
    return study::to_tables(study::run_iterate(world, recipe, setup, stop));
  });
}

}  // namespace cairn::lab
