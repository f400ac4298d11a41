#include "base/check.h"
#include "base/recipe.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "train/build/build_steps.h"
#include "train/build/check_settings.h"
#include "train/given_plan.h"

namespace cairn::train {

void read_recipe(Job& job, comm::World& world, base::Recipe recipe, const Start& start) {
  if (start.plan) use_layout_of(*start.plan, recipe, world.size());
  RunConfig& config = job.config;
  config.settings = read_settings(recipe);
  set_template_date(config.settings, recipe, start.day);
  config.recipe_toml = recipe.resolved_toml();
  config.device = kernels::device_from_name(start.device);
  check_instruments(config.settings, config.device);
  if (config.settings.train.deterministic) job.repeatable = std::make_unique<kernels::DeterministicAlgorithms>();
  Instruments& instruments = job.instruments;
  if (config.settings.log.kernels) instruments.kernel_report = std::make_unique<KernelReport>(config.device);
  if (config.settings.log.memory) instruments.memory_report = std::make_unique<MemoryReport>(config.device);
  instruments.memory = std::make_unique<base::MemoryTags>();
  instruments.wall = &world.wall();
  instruments.trace = std::make_unique<base::Trace>(world.wall(), world.rank(), config.settings.log.trace ? base::Trace::kEventsMax : 0);
  (void)at::empty({1}, config.device);  // the first tensor starts a GPU
}

}  // namespace cairn::train
