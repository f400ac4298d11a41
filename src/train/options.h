#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::train {

// The recipe's train.* keys.
struct TrainOptions {
  int64_t steps = 340;
  std::string method = "gradient";
  int64_t global_batch = 16;
  int64_t micro_batch = 0;
  std::string precision = "fp32";
  std::string fp8 = "none";
  std::string fp8_layers = "all";
  std::string parameters = "fp32";
  std::string gradients = "fp32";
  int64_t loss_chunks = 1;
  bool cuda_graph = false;
  bool deterministic = false;
  int64_t check_every = 0;
  int64_t seed = 1;
  std::string on_bad_step = "stop";
  double spike_factor = 0;
  int64_t bad_steps_max = 10;
};
base::Schema<TrainOptions> train_schema();

// The recipe's eval.* keys.
struct EvalOptions {
  int64_t every = 100;
  double fraction = 0.02;
  int64_t samples = 128;
};
base::Schema<EvalOptions> eval_schema();

// The recipe's log.* keys.
struct LogOptions {
  bool tensorboard = true;
  bool trace = true;
  int64_t samples = 3;
  std::string prompt;
  bool sync_check = false;
  bool memory = false;
  bool kernels = false;
};
base::Schema<LogOptions> log_schema();

}  // namespace cairn::train
