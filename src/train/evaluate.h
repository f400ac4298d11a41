#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "sync/sync.h"

namespace cairn::train {

struct Job;

// The result of an evaluation.
struct HeldOut {
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not evaluated, or nothing is held out
  std::vector<double> measures = {};                       // means of the objective's measures (Objective::measures)
  double seconds = 0;                                      // that it took
  sync::StepMetrics more = {};                             // further numbers by name
};

// The samples that an evaluation reads: the held-out ones, at most eval.samples.
int64_t held_out_samples(const Job& job);

// Evaluates the model on the held-out samples. The samples are sharded over the replicas; all ranks of a step group get the same means.
// `progress`, if there is one, gets the part that is done, from 0 to 1. Collective.
HeldOut evaluate_held_out(Job& job, const std::function<void(double done)>& progress = {});

}  // namespace cairn::train
