// `cairn study lifelong`: one dataset after the other, with a bounded pool.
#include "study/lifelong.h"

#include "cli/environment.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "lab/ranks_of_study.h"

namespace cairn::lab {

int study_lifelong(const cli::StudyArguments& a) {
  const study::LifelongRecipe recipe = study::read_lifelong(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path cache = cli::cache_folder();
  return run_on_ranks(a, [&](comm::World& world, int threads, const base::Stop& stop) {
    const study::StudySetup setup{.out = study_directory(a), .cache = cache.empty() ? cache : cache / "data", .threads = threads};
    return study::to_tables(study::run_lifelong(world, recipe, setup, stop));
  });
}

}  // namespace cairn::lab
