#include "train/engine.h"

#include "comm/group.h"

namespace cairn::train {

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch) { return pass_over(engine, batch, engine.axes); }

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch, const mesh::Axes& axes) {
  return pass_over(engine, batch, axes, engine.store->weights());
}

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch, const mesh::Axes& axes, const model::Weights& at) {
  return {.model = *engine.model,
          .at = at,
          .buffers = engine.buffers,
          .axes = axes,
          .batch = batch,
          .objective = *engine.objective,
          .random = engine.random,
          .context = engine.context,
          .options = engine.options,
          .progress = engine.step_group && engine.step_group->size() > 1 ? engine.step_group : nullptr};
}

}  // namespace cairn::train
