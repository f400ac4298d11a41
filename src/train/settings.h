#pragma once
#include <vector>

#include "base/recipe.h"
#include "data/options.h"
#include "model/losses/dpo.h"
#include "model/options.h"
#include "optim/options.h"
#include "parallel/layout/make_plan.h"
#include "snapshot/options.h"
#include "sync/one_byte/replica.h"
#include "sync/options.h"
#include "train/islands/remote_islands.h"
#include "train/options.h"
#include "train/steps/masha_step.h"

namespace cairn::train {

// A recipe as structs: every section read, checked, and nothing unknown left over.
struct Settings {
  model::ModelOptions model;
  model::LoraOptions lora;
  data::DataOptions data;
  TrainOptions train;
  model::DpoOptions dpo;
  sync::OneByteOptions one_byte;
  MashaStepOptions masha;
  optim::OptimOptions optim;
  parallel::LayoutOptions layout;
  sync::SyncOptions sync;    // along dp, and wherever else replicas take every step together
  sync::SyncOptions island;  // along island
  RemoteIslandOptions remote;
  snapshot::SnapshotOptions snapshot;
  EvalOptions eval;
  LogOptions log;
};

// Refuses unknown keys, wrong types and values out of range. The recipe remembers what was read, for Recipe::resolved_toml.
Settings read_settings(base::Recipe& recipe);

// Refuses what is wrong with a recipe on so many ranks (0: not known yet) and can be told without opening the data. `given`: a plan that
// the run is laid out by (given_plan.h); null: none.
void check_recipe(base::Recipe recipe, int ranks, const parallel::Plan* given = nullptr);

// Every section, in the order of the reference page.
std::vector<base::Section> recipe_sections();

}  // namespace cairn::train
