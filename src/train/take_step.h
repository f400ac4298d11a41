#pragma once
#include <cstdint>
#include <optional>

#include "data/sample_shape.h"
#include "parallel/step_plan/step_plan.h"
#include "train/step.h"

namespace cairn::train {

struct Job;

// What is known of a step after it ran.
struct TakenStep {
  int64_t batch = 0;             // the index of its batch in the sampler's order, from 0
  uint64_t samples = 0;          // checksum of the ids of its global batch
  int64_t tokens = 0;            // targets in its global batch
  int64_t loss_denominator = 0;  // the loss of the step group is a mean over so many tokens, or samples
  int64_t positions = 0;         // tokens that the step group computed, whether they are targets or not
  double flops = 0;              // of the step group, where sequences have lengths of their own; 0: as positions say
  double learning_rate = 0;
  data::SampleShape shape = {};  // of its samples, where the run changes it
  double data_wait_s = 0;  // seconds that the step waited for its batch
  StepOutput output = {};
  std::optional<parallel::StepPlan> plan = {};  // of the step
  sync::StepMetrics plan_metrics = {};          // of the plan, on the rank that made it
  sync::StepMetrics sampler_metrics = {};       // of the epoch that begins with this step; else empty
};

// Runs the step after progress.steps_done on the loader's next batch: everything from the copy of the batch to the update. The caller
// updates job.progress. Collective.
TakenStep take_step(Job& job);

// Replaces take_step on an island that is slower than others and leaves this step out (Sync::should_step).
void skip_step(Job& job);

}  // namespace cairn::train
