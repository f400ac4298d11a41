// The seam of what happens to a model between two steps: columns that are swapped, channels that are reordered, parameters that freeze.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mesh/named_tensor.h"
#include "sync/sync.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Made once for a run, before snapshots are restored. All ranks make the same calls in the same order.
class BetweenSteps {
 public:
  virtual ~BetweenSteps() = default;
  // Before step `step` (from 1): may change active sets (train/active_parts.h) and operate on parameters (train/state/surgery.h). A
  // function of the step, the seed and what snapshots hold: a resumed run calls it for the step that comes next, and a run that goes back
  // to an earlier state calls it again. Steps that an island leaves out are among them.
  virtual void before_step(int64_t step) = 0;
  // State for snapshots, identical on all ranks, under names of its own. The tensors are the live ones: a loader writes into them.
  virtual mesh::NamedTensors state() { return {}; }
  // Numbers of the last step, for the metrics.
  virtual sync::StepMetrics metrics() { return {}; }
  // One line or more about the run as a whole, for the log at its end.
  virtual std::string summary() { return ""; }
};

// Those that the recipe asks for. The list is in between_steps.cpp: a new one is its own file and one line there.
std::vector<std::unique_ptr<BetweenSteps>> make_between_steps(Job& job, comm::World& world);

}  // namespace cairn::train
