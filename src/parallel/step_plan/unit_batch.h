// From the sequences of a rank to the batches of its passes.
#pragma once
#include <cstdint>
#include <vector>

#include "mesh/batch.h"
#include "parallel/step_plan/step_plan.h"

namespace cairn::parallel {

// The places of the global batch whose sequences a rank reads: those of its units, in the order of its passes. A sequence that several
// ranks work on is read by each of them.
std::vector<int64_t> places_of(const StepPlan& plan, int rank);

// One batch for each pass of the rank (passes_of), empty where it has no unit. `sequences` holds the samples places_of names, in that
// order, with ragged fields tokens and targets. Nothing waits for the device.
//
// The batch of a unit has one row: its sequences one after the other, with `positions` that begin at 0 in each, `documents` where there are
// several (numbered in the row: a sample may be in a batch twice), and `token_keys`, by which blocks draw random numbers: those of sample
// and position, whatever shares the row. Its id is that of its first sequence. LocalBatch cuts it along the unit's ranks.
std::vector<mesh::Batch> unit_batches(const StepPlan& plan, int rank, const mesh::Batch& sequences);

// One ragged sequence as a batch of one row, outside of a plan: held-out samples.
mesh::Batch sequence_batch(const mesh::Batch& sequence);

}  // namespace cairn::parallel
