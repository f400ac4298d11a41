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

// The passes over pairs of answers: one at the weights of the reference model, for the log-probabilities of the answers, and one that
// learns from the difference. A pair is a sample, so that no micro-batch splits it.
Passes dpo_passes(std::shared_ptr<const model::Weights> reference);

}  // namespace cairn::train
