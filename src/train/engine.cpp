#include "train/engine.h"

namespace cairn::train {

mesh::Gradients* sink_of(Engine& engine) { return engine.chosen ? engine.chosen.get() : engine.gradients.get(); }

const model::Weights& weights_of_pass(Engine& engine) {
  if (!engine.lowered) return *engine.weights;
  // Every time: one walk over the parameters is nothing beside a pass, and nobody who changes them has to think of the copy.
  engine.lowered->flat().copy_(engine.weights->flat());
  return *engine.lowered;
}

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch) {
  return {.model = *engine.model,
          .at = weights_of_pass(engine),
          .buffers = engine.buffers,
          .axes = engine.axes,
          .batch = batch,
          .objective = *engine.objective,
          .random = engine.random};
}

}  // namespace cairn::train
