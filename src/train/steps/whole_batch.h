// Passes for objectives that do not separate over samples (model::Objective::Separates::nothing).
//
//   1. vectors   forward over each micro-batch, without saving activations; the outputs are kept
//   2. gather    the outputs of all micro-batches and ranks, and the batch fields that no block reads
//   3. loss      once over the whole batch, the same on every rank: its gradient with respect to the outputs
//   4. gradient  forward and backward over each micro-batch, given the rows of that gradient which are its own
//
// So gradient accumulation and data parallelism give the loss and the gradients of one pass on one rank (GradCache, arXiv:2101.06983).
// Where all ranks have their samples in one micro-batch, 1 and 4 are one pass: the gather happens between forward and backward.
#pragma once
#include <memory>

#include "model/objective.h"
#include "train/step.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// `group`: the ranks whose samples belong to one batch, in the order of the samples; null: this rank alone. Borrowed. Passes without a
// gradient sink (held-out samples) have `alone` for an objective, which separates over samples.
Execution whole_batch_execution(comm::Group* group, std::shared_ptr<const model::Objective> alone);

}  // namespace cairn::train
