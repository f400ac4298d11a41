// With T = shrink_at, R = ramp and lr(t) the learning rate at t of the run (arXiv:2407.06167, section 3):
//
//   weight(t) = 0                                      t < T - R       the whole network trains alone
//             = (t - (T - R)) / R * lr(T) / lr(t)      t < T
//             = 1                                      otherwise
#include "train/supernet/shrinking.h"

#include <algorithm>

#include "base/check.h"
#include "train/settings.h"

namespace cairn::train {

double shrinking_begins(const model::SupernetOptions& options) {
  switch (options.method) {
    case model::ShrinkMethod::early:
      return 0;
    case model::ShrinkMethod::late:
      return options.shrink_at;
    case model::ShrinkMethod::deps:
      return options.shrink_at - options.ramp;
  }
  return 0;
}

double subnet_weight(const model::SupernetOptions& options, const optim::LrSchedule& schedule, double progress, double learning_rate) {
  const double begin = shrinking_begins(options);
  if (progress < begin) return 0;
  if (options.method != model::ShrinkMethod::deps || progress >= options.shrink_at || learning_rate <= 0) return 1;
  return (progress - begin) / options.ramp * schedule.learning_rate(options.shrink_at) / learning_rate;
}

void check_shrinking(const Settings& settings) {
  const model::SupernetOptions& o = settings.model.supernet;
  if (!o.any()) {
    if (o != model::SupernetOptions{})
      base::fail_input("supernet: there is nothing to choose from. Set supernet.depth, expand (for a cnn) or mlp (for a decoder).");
    return;
  }
  if (o.method != model::ShrinkMethod::early && (o.shrink_at <= 0 || o.shrink_at >= 1))
    base::fail_input("supernet.shrink_at = {}: must be a fraction of the run between 0 and 1. Use 0.5.", o.shrink_at);
  if (o.method == model::ShrinkMethod::deps && o.ramp > o.shrink_at)
    base::fail_input("supernet.ramp = {}: begins before the run does, as it ends at supernet.shrink_at = {}. Use at most that.", o.ramp,
                     o.shrink_at);
}

}  // namespace cairn::train
