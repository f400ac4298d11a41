#pragma once
#include "base/recipe.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"
#include "parallel/activations/activation_bytes.h"
#include "parallel/plan.h"
#include "planner/traffic.h"
#include "train/settings.h"

namespace cairn::train {

// What a recipe comes to on so many ranks, without values and without a look at the data: what dry runs and plans are told from.
struct Planned {
  Settings settings;
  model::BuiltModel task;
  parallel::Plan plan;  // placed
  planner::StepBatch batch;
  planner::StepRules rules;
};

// `given`: a plan to be used instead of the one that the recipe's keys make (given_plan.h); null: none.
Planned planned(base::Recipe recipe, int ranks, const parallel::Plan* given = nullptr, bool on_gpu = false);

// What the settings say of a step of this model beside the plan. `length`: of the sequences.
planner::StepRules step_rules(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu);

// What blocks keep of a micro-batch for its gradients, on one of the ranks that share tokens and widths out; of all stages of a pipeline.
std::vector<parallel::ActivationBytes> kept_by_blocks(const Settings& settings, const model::Model& model, const parallel::Plan& plan,
                                                      int64_t length, bool on_gpu);

// What the update rule will keep of the whole model, asked of the rule itself over parameters without values.
int64_t optimizer_bytes(const Settings& settings, const model::Model& model);

}  // namespace cairn::train
