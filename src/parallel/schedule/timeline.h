#pragma once
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace cairn::parallel {

// What the actions of each stage take for one micro-batch, in seconds; `backward` takes both gradients' time. A message between two
// ranks arrives `transfer_s` after it was sent, while its sender works on.
struct StageCosts {
  std::vector<double> forward_s, backward_input_s, backward_weight_s;  // by stage
  double transfer_s = 0;
};

// What a rank's whole share of the model takes for one micro-batch.
struct RankCosts {
  double forward_s = 1, backward_input_s = 1, backward_weight_s = 1;
  double transfer_s = 0;
};

// Each rank's share in equal parts over its stages: what makes schedules with different numbers of stages comparable.
StageCosts even_costs(const Schedule& schedule, const RankCosts& costs);

struct TimedAction {
  Action action;
  double begin_s = 0;
  double end_s = 0;

  bool operator==(const TimedAction&) const = default;
};

// When each rank did what: planned by `timeline`, or filled in from what was measured.
struct Timeline {
  std::string name;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<TimedAction>> ranks;  // by rank along pp, in order of time

  bool operator==(const Timeline&) const = default;
};

// Executes a schedule in virtual time. Refuses one that does not pass `check`, and costs that are not those of its stages.
Timeline timeline(const Schedule& schedule, const StageCosts& costs);

struct RankTimelineStats {
  double busy_s = 0;
  double bubble = 0;           // the part of the step in which the rank has nothing to do
  double waiting_s = 0;        // of that, between its first action and its last
  int live_micro_batches = 0;  // most at once: from the forward of a stage until its backward, or its weight gradient
  int live_activations = 0;    // the same, counting each (stage, micro-batch)
};

struct TimelineStats {
  double step_s = 0;         // from the first action of any rank to the end of the last
  double bubble = 0;         // of all ranks together
  double step_to_ideal = 1;  // against the work of the busiest rank: no order of this split can be quicker
  std::vector<RankTimelineStats> ranks;
};

TimelineStats timeline_stats(const Timeline& timeline);

}  // namespace cairn::parallel
