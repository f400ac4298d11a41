#pragma once
#include "train/step_methods.h"

namespace cairn::train {

// Training of a text encoder on queries with right and wrong passages, which data.kind = "retrieval" chooses: passes over the whole batch
// (whole_batch.h) with the losses of model/losses/retrieval.h. A teacher scores the passages of later batches meanwhile (scores_ahead.h).
StepMethod retrieval_method();

}  // namespace cairn::train
