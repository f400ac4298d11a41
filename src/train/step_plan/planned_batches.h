// The plans of steps and the sequences that they give to this rank, made ahead of time.
#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "data/batches.h"
#include "mesh/batch.h"
#include "parallel/step_plan/step_plan.h"

namespace cairn::comm {
class Group;
}
namespace cairn::data {
class Dataset;
}

namespace cairn::train {

// A step: which ranks work on what, and the sequences of this rank (parallel::places_of), in host memory.
struct PlannedBatch {
  parallel::StepPlan plan;
  mesh::Batch sequences;
  double planning_s = 0;  // what planning took, on the rank that plans; 0 elsewhere
};

// While a step runs, the first rank of the step group plans the step after the next one on a thread, and every rank reads its sequences of
// the next one on a thread. Between two steps the plan is broadcast: planners have measured costs and time limits, so no two ranks plan.
// Every rank puts the lengths of its own data into the plan and hashes it; ranks with other data or another plan end the run.
//
//   step s     passes of s | the first rank plans s + 2 | all read s + 1
//   then       broadcast the plan of s + 2, compare hashes, read its sequences
class PlannedBatches {
 public:
  // Plans a step from the lengths of its sequences, by place. On the first rank only, and on a thread: it must not communicate.
  using Planner = std::function<parallel::StepPlan(int64_t step, const std::vector<parallel::PlannedSequence>& sequences)>;

  struct Parts {
    comm::Group& step_group;  // a group of its own for this purpose
    int pool_rank = 0;        // this rank's place among those that share the sequences out; ranks along tp have the same one
    int pool_ranks = 1;
    const data::BatchSource& source;
    const data::Dataset& dataset;
    Planner planner;
  };

  // Starts at `from`. Borrows everything but the planner. Collective over the step group, as next() is.
  PlannedBatches(Parts parts, const data::BatchIndex& from, int64_t last_step);
  ~PlannedBatches();

  PlannedBatch next();

 private:
  struct Planned {
    parallel::StepPlan plan;
    double seconds = 0;
  };
  std::vector<int64_t> ids_of(int64_t step) const;  // of the step group's samples, by place
  void start_planning(int64_t step);
  Planned agree(int64_t step);  // takes the plan from the first rank, on all ranks
  void compare(const parallel::StepPlan& plan) const;
  void start_reading(Planned planned);

  const Parts parts_;
  const data::BatchIndex from_;
  const int64_t last_step_;
  int64_t next_;
  std::future<Planned> planning_;      // of the step after the one that is read; not valid on other ranks
  std::future<PlannedBatch> reading_;  // of next_
};

}  // namespace cairn::train
