// The batches of a job: which batch a step trains on, and the thread that makes batches ahead of time (data/batches.h).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/batches.h"

namespace cairn::train {

struct Job;
class PlannedBatches;

// The index of the sampler's batch that `step` (from 1) trains on.
data::BatchIndex batch_index(const Job& job, int64_t step);

// The ids of the global batch of `step`, the same on all ranks.
std::vector<int64_t> batch_ids(const Job& job, int64_t step);

// The last step of the run; while the sampler has not decided its last epoch, an estimate above the steps that are known.
int64_t last_step(const Job& job);

// Starts, or restarts, the thread that makes the batches after progress.steps_done, as far as the sampler knows them. Collective.
void start_loader(Job& job);
// Ends it.
void stop_loader(Job& job);

// The same with step plans (build_step_plans has been called). Collective.
std::unique_ptr<PlannedBatches> plan_ahead(Job& job);

}  // namespace cairn::train
