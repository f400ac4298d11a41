#pragma once
#include <cstdint>
#include <string>

#include "base/enum_names.h"
#include "base/schema.h"

namespace cairn::train {

// A number format of passes, parameters or gradients.
enum class Precision { fp32, bf16 };
inline constexpr base::EnumName<Precision> kPrecisionNames[] = {{Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}};
inline const char* name_of(Precision value) { return base::enum_name(kPrecisionNames, value); }

// Which linear layers are in fp8.
enum class Fp8Scope { none, layers, all };
inline constexpr base::EnumName<Fp8Scope> kFp8ScopeNames[] = {
    {Fp8Scope::none, "none"}, {Fp8Scope::layers, "layers"}, {Fp8Scope::all, "all"}};
inline const char* name_of(Fp8Scope value) { return base::enum_name(kFp8ScopeNames, value); }

// What happens after a step whose loss or gradient norm is not finite, or a spike.
enum class OnBadStep { stop, skip, rollback };
inline constexpr base::EnumName<OnBadStep> kOnBadStepNames[] = {
    {OnBadStep::stop, "stop"}, {OnBadStep::skip, "skip"}, {OnBadStep::rollback, "rollback"}};
inline const char* name_of(OnBadStep value) { return base::enum_name(kOnBadStepNames, value); }

// What happens when a rank is lost: killed, crashed or frozen.
enum class OnLoss { stop, restart, shrink };
inline constexpr base::EnumName<OnLoss> kOnLossNames[] = {{OnLoss::stop, "stop"}, {OnLoss::restart, "restart"}, {OnLoss::shrink, "shrink"}};
inline const char* name_of(OnLoss value) { return base::enum_name(kOnLossNames, value); }

// The recipe's train.* keys.
struct TrainOptions {
  int64_t steps = 340;
  double epochs = 0;  // 0: `steps` decide
  std::string method = "gradient";  // a name of step_methods.h
  int64_t global_batch = 16;
  int64_t micro_batch = 0;
  Precision precision = Precision::fp32;
  Fp8Scope fp8 = Fp8Scope::none;
  std::string fp8_layers = "all";
  Precision parameters = Precision::fp32;
  Precision gradients = Precision::fp32;
  int64_t loss_chunks = 1;
  int64_t cache_frozen_bytes = 0;
  bool cuda_graph = false;
  bool deterministic = false;
  int64_t check_every = 0;
  int64_t seed = 1;
  OnBadStep on_bad_step = OnBadStep::stop;
  double spike_factor = 0;
  int64_t bad_steps_max = 10;
  OnLoss on_loss = OnLoss::stop;
  int64_t max_restarts = 3;
  double replacement_timeout_s = 600;
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
