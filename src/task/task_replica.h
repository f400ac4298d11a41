// One rank's replica of a task's parameters, and its training step: train/'s engine with the task's functions as passes.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "base/random.h"
#include "mesh/named_tensor.h"
#include "task/deployer.h"
#include "task/task.h"
#include "train/build.h"

namespace cairn::snapshot {
class OpenSnapshot;
}

namespace cairn::task {

struct TrainerOptions;

// The position of a step in the run. The same on all ranks, except `first`.
struct StepPosition {
  int64_t step = 1, update = 1;  // from 1; updates since the optimizer was fresh
  int64_t first = 0;             // position of this rank's first example in the global batch
  double learning_rate = 0;
};

// Over all ranks.
struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
};

class TaskReplica {
 public:
  TaskReplica(Deployer& deployer, TaskFunctions functions, const Params& start, const TrainerOptions& options);
  TaskReplica(const TaskReplica&) = delete;
  TaskReplica& operator=(const TaskReplica&) = delete;

  const TaskFunctions& functions() const { return functions_; }

  // This rank's examples of the global batch, in micro-batches; then one update of everything. Collective.
  StepResult step(const Examples& examples, std::span<const int64_t> places, const StepPosition& at);
  // The mean loss over all examples, sharded over the ranks; trains nothing. Collective.
  double mean_loss(const Examples& examples) const;

  Params params() const;         // copies
  void reset(const Params& to);  // and a fresh optimizer

  // Whole parameters and optimizer state on rank 0. Collective.
  std::pair<mesh::NamedTensors, mesh::NamedTensors> whole_state();
  void load(const snapshot::OpenSnapshot& from);

 private:
  model::Losses pass(const parallel::Pass& micro_batch);
  void finish_gradients();  // divides the summed gradients by the total weight, before the update
  void fresh_optimizer();
  Params leaves(bool differentiable) const;  // as a pass reads them

  Deployer& deployer_;
  const TaskFunctions functions_;
  const int64_t micro_batch_;
  const base::Random random_;
  train::Job job_;  // what a step and a snapshot need of a Job
  // Of the current step.
  const Examples* examples_ = nullptr;
  base::Random step_random_;
  at::Tensor totals_;  // double [2]: sum and weight of the losses
};

}  // namespace cairn::task
