// One rank's replica of a task's parameters, and its training step: train/'s engine with the task's functions as passes.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "base/random.h"
#include "mesh/named_tensor.h"
#include "task/deployer.h"
#include "task/task.h"
#include "task/tensor_rules.h"
#include "task/trainer_options.h"
#include "train/build.h"

namespace cairn::snapshot {
class OpenSnapshot;
}

namespace cairn::task {

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

  // Along tp: places the parameters by the two rules, from a trace of the loss of these examples (tensor_rules.h), and keeps their values.
  // The optimizer is fresh afterwards. Once; nothing where tp is 1. Collective.
  void place(const Examples& examples);
  const std::map<std::string, TensorRule>& rules() const { return rules_; }  // empty: not placed yet, or tp is 1

  // As a pass reads them: along tp, DTensors.
  Params leaves(bool differentiable) const;
  Params params() const;         // whole copies. Collective.
  void reset(const Params& to);  // and a fresh optimizer

  // Whole parameters and optimizer state on rank 0. Collective.
  std::pair<mesh::NamedTensors, mesh::NamedTensors> whole_state();
  void load(const snapshot::OpenSnapshot& from);

 private:
  model::Losses pass(const parallel::Pass& micro_batch);
  void finish_gradients();  // divides the summed gradients by the total weight, before the update
  void fresh_optimizer();
  void build();  // what depends on where parameters lie
  mesh::Placement::How placement(size_t parameter) const;
  at::Tensor distributed(size_t parameter, const at::Tensor& local) const;  // a DTensor along tp
  at::Tensor local(size_t parameter, const at::Tensor& gradient) const;     // this rank's contribution to a gradient

  Deployer& deployer_;
  const TaskFunctions functions_;
  const TrainerOptions options_;
  const int64_t micro_batch_;
  const base::Random random_;
  std::map<std::string, TensorRule> rules_;
  train::Job job_;  // what a step and a snapshot need of a Job
  // Of the current step.
  const Examples* examples_ = nullptr;
  base::Random step_random_;
  at::Tensor totals_;  // double [2]: sum and weight of the losses
};

}  // namespace cairn::task
