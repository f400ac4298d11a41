#pragma once
#include <limits>
#include <vector>

namespace cairn::train {

struct Job;

// The result of an evaluation.
struct HeldOut {
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not evaluated, or nothing is held out
  std::vector<double> measures = {};                       // means of the objective's measures (Objective::measures)
};

// Evaluates the model on the held-out samples, at most eval.samples of them. The samples are sharded over the replicas; all ranks of a step
// group get the same means. Collective.
HeldOut evaluate_held_out(Job& job);

}  // namespace cairn::train
