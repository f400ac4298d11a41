#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace cairn::optim {

double Schedule::learning_rate(double progress) const {
  if (progress < warmup) return highest * progress / warmup;
  if (shape == "constant") return highest;
  const double done = warmup < 1 ? std::clamp((progress - warmup) / (1 - warmup), 0.0, 1.0) : 1.0;
  double share = 0;  // of the way still above the final value
  if (shape == "linear") {
    share = 1 - done;
  } else {
    CAIRN_CHECK(shape == "cosine", "schedule \"{}\"", shape);
    share = 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return highest * (final_share + (1 - final_share) * share);
}

}  // namespace cairn::optim
