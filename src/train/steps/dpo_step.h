#pragma once
#include <memory>

#include "base/schema.h"
#include "model/call.h"
#include "model/losses/dpo.h"
#include "train/step_methods.h"

namespace cairn::train {

// The recipe's train.dpo.* keys.
base::Schema<model::DpoOptions> dpo_schema();

StepMethod dpo_method();

// The passes over pairs of answers: those at the weights of the reference model, for the log-probabilities of the answers, and those that
// learn from the difference. A pair is a sample, so that no micro-batch splits it. `run` executes passes, in turn or in a pipeline.
Execution dpo_execution(std::shared_ptr<const model::Weights> reference, Execution run);

}  // namespace cairn::train
