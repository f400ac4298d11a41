#include "study/supernet/supernet_run.h"

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/recipe.h"
#include "data/subset.h"
#include "train/build.h"
#include "train/job.h"

namespace cairn::study {
namespace {

// Whatever the run was trained on, one rank is enough for what follows.
constexpr const char* kOnOneRank[] = {"mesh.dp=1", "mesh.shard=1",  "mesh.pp=1",     "mesh.cp=1",           "mesh.tp=1",
                                      "mesh.ep=1", "mesh.island=1", "memory.zero=0", "train.micro_batch=0", "recompute.mode=none"};

// The recipe of the run, for one rank.
base::Recipe supernet_recipe(const SupernetRun& from) {
  const std::filesystem::path file = from.run / "recipe.toml";
  if (!base::path_exists(file))
    base::fail_input("{}: no run there: it has no recipe.toml. Give the directory of a run with a [supernet].", from.run.string());
  base::Recipe recipe = base::Recipe::parse_saved(base::Recipe::File::read(file));
  for (const char* set : kOnOneRank) recipe.set(set, "cairn supernet");
  for (const std::string& set : from.sets) recipe.set(set);
  return recipe;
}

}  // namespace

train::Settings supernet_settings(const SupernetRun& from) {
  base::Recipe recipe = supernet_recipe(from);
  train::Settings settings = train::read_settings(recipe);
  if (!settings.model.supernet.any())
    base::fail_input("{}: its recipe has no [supernet]: there are no networks in it to choose from.", from.run.string());
  return settings;
}

std::unique_ptr<train::Job> open_supernet(comm::World& world, const SupernetRun& from) {
  supernet_settings(from);  // refuses what is no supernet
  std::unique_ptr<train::Job> job = train::build(
      world, supernet_recipe(from),
      {.out = from.run, .resume = true, .cache = from.cache, .device = from.device, .threads = from.threads, .terminal = nullptr}, {});
  if (job->progress.steps_done == 0) base::fail_input("{}: this run has no snapshot yet.", from.run.string());
  return job;
}

}  // namespace cairn::study
