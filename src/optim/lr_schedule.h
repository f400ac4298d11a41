#pragma once
#include <string>
#include <vector>

namespace cairn::optim {

// The learning rate over a run. It follows progress (a fraction that the sampler supplies) instead of the step number, because some
// samplers change the length of a run.
struct LrSchedule {
  std::string shape = "cosine";  // one of schedule_names()
  double highest = 1e-3;
  double warmup = 0;          // fraction of the run over which the rate rises from 0; above 1 the run ends during the warm-up
  double min_lr_ratio = 0.1;  // final rate, as a fraction of `highest`
  double decay_share = 0.2;   // wsd: fraction of the run that the decay takes at its end; shorter where the warm-up reaches into it
  std::string decay_shape = "1-sqrt";  // wsd: one of decay_shapes()
  // A warm restart: after this fraction of the run the schedule begins again, without a warm-up, from this fraction of `highest`; 0: none.
  double restart_at = 0, restart_ratio = 1;

  // The rate at `progress` in [0, 1]. Callers pass the progress at the end of a step, so that the first step has a rate above 0.
  double learning_rate(double progress) const;
};

// constant, linear, cosine, wsd (warm-up, stable, decay).
std::vector<std::string> schedule_names();

// Shapes of the decay of wsd: linear, 1-sqrt (Haegele et al., arXiv:2405.18392).
std::vector<std::string> decay_shapes();

}  // namespace cairn::optim
