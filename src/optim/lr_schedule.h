#pragma once
#include <string>
#include <vector>

namespace cairn::optim {

// How the learning rate moves over a run. It follows progress (a fraction that the sampler supplies), not the step number, because
// some samplers change the length of a run.
struct LrSchedule {
  std::string shape = "cosine";  // one of schedule_names()
  double highest = 1e-3;
  double warmup = 0;                   // share of the run over which it rises from 0; above 1 the run ends on the way up
  double final_share = 0.1;            // of `highest`, at the end
  double decay_share = 0.2;            // wsd: of the run, at its end; what is left of the run after a longer warm-up
  std::string decay_shape = "1-sqrt";  // wsd: one of decay_shapes()

  // At `progress` in [0, 1], taken at the end of the step, so that the first step already moves.
  double learning_rate(double progress) const;
};

// constant; linear and cosine from the warm-up to the end; wsd (warm-up, stable, decay): constant, then down over the last part.
std::vector<std::string> schedule_names();

// With x the share of the decay that is done: linear is 1 - x, 1-sqrt is 1 - sqrt(x) (Haegele et al., arXiv:2405.18392).
std::vector<std::string> decay_shapes();

}  // namespace cairn::optim
