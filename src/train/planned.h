#pragma once
#include "base/recipe.h"
#include "model/context/choose.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"
#include "parallel/activations/activation_bytes.h"
#include "parallel/plan.h"
#include "planner/traffic.h"
#include "train/settings.h"

namespace cairn::train {

// A run as planned from its recipe: model, plan and step rules, without parameter values and without opening the data. Dry runs and
// `cairn plan` work on it.
struct Planned {
  Settings settings;
  model::BuiltModel task;
  parallel::Plan plan;  // placed
  planner::StepBatch batch;
  planner::StepRules rules;
  std::string context_reason = {};  // why context.form = auto chose as it did; empty: the form was given
};

// `given`: a plan that decides the layout (given_plan.h); null: the recipe's keys decide it.
// `links`: along cp, for context.form = auto.
Planned planned(base::Recipe recipe, int ranks, const parallel::Plan* given = nullptr, bool on_gpu = false,
                const model::ContextLinks& links = {.origin = "assumed"});

// The rules of a step that do not follow from the plan: recomputation, trained parameters, bucket size. `length`: tokens of a sequence.
planner::StepRules step_rules(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu);

// The tokens of one sequence row of a pass: a micro-batch of `length` each, or what context.plan lets a rank hold.
int64_t pass_tokens(const Settings& settings, const parallel::Plan& plan, int64_t length);

// The activation memory of each block for one micro-batch, on one rank of the tp and cp groups. All pipeline stages are included.
std::vector<parallel::ActivationBytes> kept_by_blocks(const Settings& settings, const model::Model& model, const parallel::Plan& plan,
                                                      int64_t length, bool on_gpu);

// The optimizer state of the whole model in bytes. It is measured on an optimizer over meta tensors.
int64_t optimizer_bytes(const Settings& settings, const model::Model& model);

}  // namespace cairn::train
