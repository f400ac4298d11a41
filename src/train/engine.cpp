#include "train/engine.h"

namespace cairn::train {

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch) {
  return {.model = *engine.model,
          .at = engine.store->weights(),
          .buffers = engine.buffers,
          .axes = engine.axes,
          .batch = batch,
          .objective = *engine.objective,
          .random = engine.random,
          .context = engine.context,
          .overlap = engine.overlap,
          .late_sums = engine.late_sums,
          .loss_chunks = engine.loss_chunks,
          .fp8 = engine.fp8.get(),
          .draws_by_token = engine.draws_by_token};
}

void recompute_as_planned(const Engine& engine, parallel::Pass& pass, bool last) {
  if (!engine.recompute_last && last) return;
  if (!engine.recompute.empty()) pass.recompute = &engine.recompute;
  pass.offload_inputs = engine.offload_inputs;
  pass.recompute_stage = engine.recompute_stage;
}

}  // namespace cairn::train
