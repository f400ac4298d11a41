#include "train/engine.h"

namespace cairn::train {

mesh::Gradients* sink_of(Engine& engine) { return engine.chosen ? engine.chosen.get() : engine.gradients.get(); }

parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch) {
  return {.model = *engine.model,
          .at = *engine.weights,
          .buffers = engine.buffers,
          .axes = engine.axes,
          .batch = batch,
          .objective = *engine.objective,
          .random = engine.random};
}

}  // namespace cairn::train
