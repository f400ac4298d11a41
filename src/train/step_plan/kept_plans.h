// The plans of a run's steps on disk, and planning by them (replay).
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>

#include "train/step_plan/planned_batches.h"

namespace cairn::train {

inline constexpr const char* kPlansFile = "step_plans.jsonl";  // in a run directory: one line for each step, in order

// By step; of several plans of a step the last one. No file: none. An incomplete last line (a crash) is left out; any other line that is no
// plan is refused.
std::map<int64_t, parallel::StepPlan> read_kept_plans(const std::filesystem::path& run);

// Plans as a run has done; steps of which it has kept no plan by `otherwise`. Refuses a kept plan for sequences of other lengths.
PlannedBatches::Planner plan_as_kept(std::map<int64_t, parallel::StepPlan> kept, PlannedBatches::Planner otherwise);

}  // namespace cairn::train
