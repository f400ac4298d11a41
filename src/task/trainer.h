// Trains a task: epochs of shuffled examples, gradients of its loss, one update a step, checkpoints.
//
// The step is that of train/step.h: gradient accumulation, the parameter store, all-reduce that overlaps with backward, clipping, the
// optimizer, ZeRO. Two things differ. The passes are the task's functions (task_replica.h) instead of blocks and objective. The loop works
// by epochs: train::run draws batches across epoch borders and knows the token count beforehand, while here the weight of a loss is known
// only once it is computed.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "task/deployer.h"
#include "task/task.h"
#include "task/tensor_rules.h"
#include "task/trainer_options.h"

namespace cairn::task {

struct StepReport {
  int64_t epoch = 0, step = 0;  // from 1
  double loss = 0;              // over the global batch
  double gradient_norm = 0;     // before clipping
  double learning_rate = 0;
  bool operator==(const StepReport&) const = default;
};

struct EpochReport {
  int64_t epoch = 0;
  Metrics metrics = {};  // "loss", "eval_loss", and the task's own
};

struct Report {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  int64_t dropped = 0;  // examples that an epoch leaves out because they do not fill a step
};

// A trainer without the type of its examples. Every call is collective: all ranks make the same calls with the same examples.
class Training {
 public:
  // Borrows the deployer. Refuses batch sizes that do not divide.
  Training(Deployer& deployer, TaskFunctions functions, const Params& start, TrainerOptions options);
  ~Training();

  // Trains options.epochs epochs, or the rest of them in a resumed run. The order of an epoch depends on the seed and the epoch's number,
  // which continues over calls. Examples that do not fill a step are left out, with a warning that gives their number.
  Report fit(const Examples& training, const Examples& evaluation);
  // The mean loss ("eval_loss") and the task's metrics.
  Metrics evaluate(const Examples& examples) const;

  // Where each parameter lies along tp, and why; empty before the first fit, or where tp is 1.
  const std::map<std::string, TensorRule>& tensor_rules() const;

  Params params() const;         // copies
  void reset(const Params& to);  // new values and a fresh optimizer; step and epoch numbers continue
  int64_t steps_done() const;
  int64_t epochs_done() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same for a task: Trainer trainer(deployer, task, start, {.epochs = 3}); trainer.fit(examples).
template <typename Example>
class Trainer {
 public:
  Trainer(Deployer& deployer, Task<Example> task, const Params& start, TrainerOptions options = {})
      : task_(std::move(task)), training_(deployer, functions_of(task_), start, std::move(options)) {}

  Report fit(const std::vector<Example>& training, const std::vector<Example>& evaluation = {}) {
    return training_.fit(examples_of(task_, training), examples_of(task_, evaluation));
  }
  Metrics evaluate(const std::vector<Example>& examples) const { return training_.evaluate(examples_of(task_, examples)); }
  const std::map<std::string, TensorRule>& tensor_rules() const { return training_.tensor_rules(); }
  Params params() const { return training_.params(); }
  void reset(const Params& to) { training_.reset(to); }
  int64_t steps_done() const { return training_.steps_done(); }
  int64_t epochs_done() const { return training_.epochs_done(); }

 private:
  Task<Example> task_;
  Training training_;
};

}  // namespace cairn::task
