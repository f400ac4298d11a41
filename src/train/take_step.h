#pragma once
#include <cstdint>
#include <vector>

#include "train/step.h"

namespace cairn::train {

struct Job;

// One step of a job as it was taken: what it was given, and what came of it.
struct TakenStep {
  int64_t batch = 0;             // which of the sampler's batches it trained on, from 0
  uint64_t samples = 0;          // checksum of the ids of its global batch
  int64_t tokens = 0;            // targets in its global batch
  int64_t loss_denominator = 0;  // what the company's loss is a mean over: its tokens, or samples
  double learning_rate = 0;
  StepOutput output = {};
};

// Runs the step after job.steps_done on the next batch of the loader: everything from the copy of the batch to the update. What the run
// remembers of it (steps_done and the like) is the caller's. Collective.
TakenStep take_step(Job& job);

// In place of it: the step passes without this replica, which takes its time.
void skip_step(Job& job);

// The ids of the global batch that a step trains on, alike on all ranks.
std::vector<int64_t> batch_ids(const Job& job, int64_t step);

}  // namespace cairn::train
