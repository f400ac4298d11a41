#pragma once
#include "parallel/schedule.h"

namespace cairn::parallel {

// What a run adds to the forwards and backwards of a schedule.
struct ExtraActions {
  bool recompute = false;    // a micro-batch is recomputed before its backward: while the rank waits for the gradient
  bool except_last = false;  // the last micro-batch of a step keeps everything and is not recomputed
  bool offload = false;      // what a micro-batch keeps leaves for host memory, unless its gradients are the rank's next action
  bool gather = false;       // the weights of a stage are gathered one action ahead of its first forward
  bool reduce = false;       // gradients of a stage leave after its last backward, not each when it is complete
};

// Places them in every rank's list. Kinds of actions that the schedule has already (from a file) stay where they are, and none are added.
Schedule add_actions(Schedule schedule, const ExtraActions& extra);

}  // namespace cairn::parallel
