#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::optim {

// The recipe's optim.* keys.
struct OptimOptions {
  std::string kind = "adamw";  // a name of optimizer_names(); what it needs: needs.h
  double learning_rate = 5e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  std::string moments = "fp32";
  std::string rounding = "stochastic";
  double momentum = 0.95;
  bool nesterov = true;
  bool decay_decoupled = true;
  std::string muon_scale = "rms";
  int64_t muon_iterations = 5;
  double muon_adamw_share = 1.0;
  double factor_decay = 0.8;
  double factor_clip = 1.0;
  double factor_beta1 = 0.0;
  bool relative_step = false;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 120;
  double final_share = 0.02;
  double decay_share = 0.2;
  std::string decay_shape = "1-sqrt";
};

base::Schema<OptimOptions> optim_schema();

}  // namespace cairn::optim
