#include "parallel/pass.h"

#include "kernels/aten.h"
#include "parallel/pass_run.h"

namespace cairn::parallel {

bool runs_blocks(const Pass& pass) { return pass.batch.samples() > 0 || (pass.options.experts && pass.axes.find("ep")); }

model::Losses no_losses(const Pass& pass) {
  const auto options = pass.batch.ids.options();
  return {.sum = at::zeros({}, options.dtype(at::kDouble)), .count = at::zeros({}, options.dtype(at::kLong))};
}

model::Losses execute(const Pass& pass) {
  PassRun run(pass);
  run.forward();
  model::Losses losses = run.evaluate_objective();
  if (pass.into) run.backward();
  return losses;
}

}  // namespace cairn::parallel
