// The plans of steps and the sequences that they give to this rank, made ahead of time.
#pragma once
#include <cstdint>
#include <filesystem>
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
};

// While a step runs, rank 0 of the pool plans the step after the next one on a thread, and every rank reads its sequences of the next one
// on a thread. Between two steps the plan is broadcast: planners measure and may be timed, so no two ranks plan.
//
//   step s     passes of s | rank 0 plans s + 2 | all read s + 1
//   then       broadcast the plan of s + 2, hash it, read its sequences
class PlannedBatches {
 public:
  // Plans a step from the lengths of its sequences, by place. On rank 0 of the pool only, and on a thread: it must not communicate.
  using Planner = std::function<parallel::StepPlan(int64_t step, const std::vector<parallel::PlannedSequence>& sequences)>;

  // `pool`: the ranks that share the sequences of a step group out, in mesh order; a group of its own for this purpose. `record`: rank 0 of
  // the pool appends its plans there, one line each; empty: nobody does. Starts at `from`. Borrows everything.
  PlannedBatches(comm::Group& pool, const data::BatchSource& source, const data::Dataset& dataset, Planner planner,
                 const data::BatchIndex& from, int64_t last_step, std::filesystem::path record);
  ~PlannedBatches();

  // The next step. Collective over the pool.
  PlannedBatch next();

 private:
  std::vector<int64_t> ids_of(int64_t step) const;  // of the step group's samples, by place
  void start_planning(int64_t step);
  parallel::StepPlan agree(int64_t step);  // takes the plan from rank 0, on all ranks
  void start_reading(parallel::StepPlan plan);

  comm::Group& pool_;
  const data::BatchSource& source_;
  const data::Dataset& dataset_;
  const Planner planner_;
  const data::BatchIndex from_;
  const int64_t last_step_;
  const std::filesystem::path record_;
  int64_t next_;
  std::future<parallel::StepPlan> planning_;  // of the step after the one that is read; not valid on other ranks
  std::future<PlannedBatch> reading_;         // of next_
};

}  // namespace cairn::train
