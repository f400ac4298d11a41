#pragma once
#include "base/schema.h"
#include "model/losses/grpo.h"
#include "train/step_methods.h"

namespace cairn::train {

// The recipe's train.grpo.* keys.
base::Schema<model::GrpoOptions> grpo_schema();

StepMethod grpo_method();

}  // namespace cairn::train
