#pragma once
#include <string>

namespace cairn::optim {

// How the learning rate moves over a run. It follows progress (a fraction that the sampler supplies), not the step number, because
// some samplers change the length of a run.
struct Schedule {
  std::string shape = "cosine";  // constant, linear, cosine
  double highest = 1e-3;
  double warmup = 0;         // share of the run over which it rises from 0; above 1 the run ends on the way up
  double final_share = 0.1;  // of `highest`, at the end

  // At `progress` in [0, 1], taken at the end of the step, so that the first step already moves.
  double learning_rate(double progress) const;
};

}  // namespace cairn::optim
