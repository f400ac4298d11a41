#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::optim {

// The recipe's optim.* keys.
struct OptimOptions {
  std::string kind = "adamw";
  double learning_rate = 5e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 120;
  double final_share = 0.02;
};

base::Schema<OptimOptions> optim_schema();

}  // namespace cairn::optim
