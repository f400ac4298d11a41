#pragma once
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace cairn::parallel {

// Seconds of each stage's actions for one micro-batch; `backward` takes the time of both gradients. A message between two ranks arrives
// `transfer_s` after it was sent; its sender does not wait. Gather, reduce and offload take no time of the rank: the first forward of a
// stage waits for its gather, a recompute for its offload, and the step for all.
struct StageCosts {
  std::vector<double> forward_s, backward_input_s, backward_weight_s;  // by stage
  double transfer_s = 0;
  std::vector<double> recompute_s = {};  // by stage; empty: as forward_s
  // By stage; empty: 0.
  std::vector<double> gather_s = {}, reduce_s = {}, offload_s = {};
};

// Seconds of a rank's whole part of the model for one micro-batch.
struct RankCosts {
  double forward_s = 1, backward_input_s = 1, backward_weight_s = 1;
  double transfer_s = 0;
  double recompute_in_backward_s = 0;  // where the schedule has no recompute actions: what backward recomputes before its gradients
};

// Divides a rank's seconds evenly over its stages, so that schedules with different numbers of stages can be compared.
StageCosts even_costs(const Schedule& schedule, const RankCosts& costs);

struct TimedAction {
  Action action;
  double begin_s = 0;
  double end_s = 0;

  bool operator==(const TimedAction&) const = default;
};

// What each rank does when: simulated by `timeline`, or filled in from measurements.
struct Timeline {
  std::string name;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<TimedAction>> ranks;  // by rank along pp, in order of time

  bool operator==(const Timeline&) const = default;
};

// Executes a schedule in virtual time. Throws bad_input for a schedule that does not pass `check`, and for costs of another number of
// stages.
Timeline timeline(const Schedule& schedule, const StageCosts& costs);

struct RankTimelineStats {
  double busy_s = 0;           // computing
  double bubble = 0;           // fraction of the step in which the rank is idle
  double waiting_s = 0;        // idle time between its first action and its last
  int live_micro_batches = 0;  // most at once: from the forward of a stage until its backward, or its weight gradient
  int live_activations = 0;    // the same, counting each (stage, micro-batch)
};

struct TimelineStats {
  double step_s = 0;         // from the first action of any rank to the end of the last
  double bubble = 0;         // of all ranks together
  double step_to_ideal = 1;  // step time over the work of the busiest rank, a lower bound for any schedule of these stages
  std::vector<RankTimelineStats> ranks;
};

TimelineStats timeline_stats(const Timeline& timeline);

}  // namespace cairn::parallel
