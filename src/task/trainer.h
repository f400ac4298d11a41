// Trains a task: epochs of shuffled examples, gradients of its loss, one update a step, checkpoints.
//
// The step is the trainer's own (train/step.h): micro-batches, the store of parameters, their sum over replicas while gradients still
// come, clipping, the optimizer, ZeRO's shares. Only the passes differ (replica.h: collate and loss in the place of blocks and
// objective), and the loop around it: train::run draws batches from samplers that run over the ends of epochs and count tokens
// beforehand, while here an epoch is an epoch, and what a loss weighs is known only when it has been computed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "task/deployer.h"
#include "task/task.h"

namespace cairn::task {

// Which states are kept on disk, each in a folder of its own beside the others. Metrics are those of an epoch: "loss" (training), and where
// there are examples to evaluate on "eval_loss" and what the task's metric names.
struct SaveOptions {
  int64_t every_epochs = 0;              // 0: none of these; all are kept
  bool last = false;                     // the newest epoch, each replacing the one before
  std::vector<std::string> argmin = {};  // the epoch where this metric was lowest so far
  std::vector<std::string> argmax = {};  // highest
};

struct TrainerOptions {
  std::string name = "model";  // of its folder, its log lines and its random numbers
  int64_t per_device_batch = 8;
  int64_t global_batch = 0;  // examples of one step, a multiple of per_device_batch * dp; 0: just that
  int64_t epochs = 1;        // of each call of fit
  std::string optimizer = "adamw";
  double learning_rate = 1e-3;  // the highest
  double momentum = 0;          // sgd, muon
  double beta2 = 0.999;         // adamw
  double weight_decay = 0;
  double clip = 0;                  // largest norm of the whole gradient; 0: not clipped
  std::string schedule = "linear";  // after the warm-up, down to final_share: linear, cosine, constant, wsd
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;  // of all steps; one of the two
  double final_share = 0;
  int64_t steps_total = 0;  // that the schedule is over; 0: those of a call of fit
  int zero = 0;             // what replicas share out: 1 optimizer state, 2 gradients too
  SaveOptions save = {};
  bool resume = false;       // go on after the last epoch that was saved, if there is one
  bool sanity_check = true;  // before the first step
};

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
  int64_t dropped = 0;  // examples that an epoch leaves out
};

// A trainer without the type of its examples. Every call is collective: all ranks call it alike, with the same examples.
class Training {
 public:
  // The deployer is borrowed. Refuses sizes that do not fit each other.
  Training(Deployer& deployer, TaskFunctions functions, const Params& start, TrainerOptions options);
  ~Training();

  // options.epochs epochs (or what a resumed run has left of them). The order of an epoch is a function of the seed and the number of the
  // epoch, which counts on over calls; what does not fill a step at its end is left out, with a warning that counts.
  Report fit(const Examples& training, const Examples& evaluation);
  // The mean loss ("eval_loss") and the task's metrics.
  Metrics evaluate(const Examples& examples) const;

  Params params() const;         // copies
  void reset(const Params& to);  // other values and a fresh optimizer; steps and epochs count on
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
  Params params() const { return training_.params(); }
  void reset(const Params& to) { training_.reset(to); }
  int64_t steps_done() const { return training_.steps_done(); }
  int64_t epochs_done() const { return training_.epochs_done(); }

 private:
  Task<Example> task_;
  Training training_;
};

}  // namespace cairn::task
