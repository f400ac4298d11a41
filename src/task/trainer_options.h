// How a task is trained.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::task {

// Which checkpoints are kept, each kind in its own folder. Metrics are those of an epoch: "loss" (training) and, where there are evaluation
// examples, "eval_loss" and the task's own.
struct SaveOptions {
  int64_t every_epochs = 0;              // 0: none; otherwise all of them are kept
  bool last = false;                     // the newest epoch only
  std::vector<std::string> argmin = {};  // the epoch where this metric was lowest so far
  std::vector<std::string> argmax = {};  // highest
};

struct TrainerOptions {
  std::string name = "model";  // names its folder and log lines, and keys its random numbers
  int64_t per_device_batch = 8;
  int64_t global_batch = 0;  // examples of one step, a multiple of per_device_batch * dp; 0: per_device_batch * dp
  int64_t epochs = 1;        // of each call of fit
  std::string optimizer = "adamw";
  double learning_rate = 1e-3;  // the highest
  double momentum = 0;          // sgd, muon
  double beta2 = 0.999;         // adamw
  double weight_decay = 0;
  double max_grad_norm = 0;         // largest norm of the whole gradient; 0: not clipped
  std::string schedule = "linear";  // after the warm-up, down to min_lr_ratio: linear, cosine, constant, wsd
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;  // fraction of all steps; set one of the two
  double min_lr_ratio = 0;
  int64_t steps_total = 0;         // length of the schedule; 0: the steps of one call of fit
  int zero = 0;                    // ZeRO stage: 1 shards optimizer state, 2 gradients too
  std::string precision = "fp32";  // fp32; bf16: passes read parameters and examples in bf16, updates and sums are in fp32
  SaveOptions save = {};
  bool resume = false;       // continue after the last saved epoch, if there is one
  bool sanity_check = true;  // before the first step
};

}  // namespace cairn::task
