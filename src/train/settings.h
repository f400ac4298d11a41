#pragma once
#include <any>
#include <stdexcept>
#include <vector>

#include "base/recipe.h"
#include "data/options.h"
#include "elastic/diagnosis/options.h"
#include "model/losses/dpo.h"
#include "model/options.h"
#include "optim/options.h"
#include "parallel/layout/make_plan.h"
#include "snapshot/options.h"
#include "sync/options.h"
#include "train/islands/remote_islands.h"
#include "train/options.h"
#include "train/state/memory_options.h"

namespace cairn::train {

// A recipe as structs, one for each section.
struct Settings {
  model::ModelOptions model;
  model::AdapterOptions adapter;
  data::DataOptions data;
  TrainOptions train;
  optim::OptimOptions optim;
  parallel::LayoutOptions layout;
  sync::SyncOptions sync;    // between replicas that take every step together (sync.dp)
  sync::SyncOptions island;  // between islands (sync.island)
  RemoteIslandOptions remote;
  snapshot::SnapshotOptions snapshot;
  elastic::DiagnosisOptions diagnosis;
  MemorySnapshotOptions memory_snapshot;
  EvalOptions eval;
  LogOptions log;
  std::vector<std::any> steps;  // the options of each step method that has some (step_methods.h)

  template <typename O>
  const O& step_options() const {
    for (const std::any& one : steps)
      if (const O* found = std::any_cast<O>(&one)) return *found;
    throw std::logic_error("no step method has these options");
  }
};

// Reads all sections. Refuses unknown keys, wrong types and values out of range. The recipe remembers which values were read, for
// Recipe::resolved_toml.
Settings read_settings(base::Recipe& recipe);

// Sets data.template_date to `day` (Start::day) in the settings and the resolved recipe, where the chat template asks for a date and the
// recipe has none.
void set_template_date(Settings& settings, base::Recipe& recipe, const std::string& day);

// Refuses a recipe that cannot run on this number of ranks (0: not known yet), as far as this is known without opening the data. `given`: a
// plan that decides the layout (given_plan.h); null: none.
void check_recipe(base::Recipe recipe, int ranks, const parallel::Plan* given = nullptr);

// All sections, in the order of the reference page.
std::vector<base::Section> recipe_sections();

}  // namespace cairn::train
