#pragma once
#include <limits>
#include <vector>

namespace cairn::train {

struct Job;

// What the model makes of the held-out samples.
struct HeldOut {
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not evaluated, or nothing is held out
  std::vector<double> measures = {};                       // means of what the objective measures
};

// Means over the held-out samples (at most eval.samples of them), shared out over the replicas; the same on all of them.
HeldOut evaluate_held_out(Job& job);

}  // namespace cairn::train
