#include "parallel/pass.h"

#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/stage_run.h"

namespace cairn::parallel {
namespace {

// A pass without samples still fetches weights and skips gradients in the same order: ranks with samples need this one in the collectives.
model::Losses run_without_samples(const Pass& pass) {
  std::vector<std::vector<mesh::ParamId>> named;
  for (const auto& block : pass.model.blocks()) named.push_back(model::named_parameters(block->card()));
  for (int round = 0; round < (pass.into && pass.recompute && pass.options.recompute_stage ? 2 : 1); ++round)
    for (size_t i = 0; i < named.size(); ++i) {
      pass.at.fetch(named[i]);
      pass.at.fetch(weights_ahead(pass, named, 0, i, /*forward=*/true));
      if (!pass.into || i + 1 < named.size()) pass.at.release(named[i], weights_kept(pass, named, 0, i, /*forward=*/true));
    }
  for (size_t i = named.size(); pass.into && i-- > 0;) {
    if (backward_needs_weights(pass, i)) pass.at.fetch(named[i]);
    pass.at.fetch(weights_ahead(pass, named, 0, i, /*forward=*/false));
    for (const mesh::ParamId& id : named[i]) pass.into->skip(id);
    pass.at.release(named[i], weights_kept(pass, named, 0, i, /*forward=*/false));
  }
  if (pass.into) pass.into->end_pass();
  return no_losses(pass);
}

}  // namespace

model::Losses no_losses(const Pass& pass) {
  const auto options = pass.batch.ids.options();
  return {.sum = at::zeros({}, options.dtype(at::kDouble)), .count = at::zeros({}, options.dtype(at::kLong))};
}

model::Losses execute(const Pass& pass) {
  if (pass.batch.samples() == 0) return run_without_samples(pass);
  StageRun run(pass, {0, pass.model.blocks().size()}, /*releases=*/true);
  run.forward();
  model::Losses losses = run.evaluate_objective();
  if (!pass.into) return losses;
  run.backward();
  if (pass.field_gradients) run.collect_field_gradients(*pass.field_gradients);
  pass.into->end_pass();
  return losses;
}

}  // namespace cairn::parallel
