#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "train/build/build_steps.h"
#include "train/model_from.h"
#include "train/parameter_piece.h"
#include "train/start_forms.h"
#include "train/state/full_state.h"

namespace cairn::train {

void start_weights(Job& job, const std::optional<snapshot::Pretrained>& pretrained, comm::World& world) {
  for (const StateTensor& one : parameter_state(job)) {
    if (!one.mine.defined()) continue;
    const auto there = mesh::hold(job.engine.store->swapper(), one.mine, mesh::TensorSwapper::Access::update);
    if (one.mine.sizes().vec() == one.shape) {
      start_values(job, one.parameter, one.mine);
    } else {  // a sharded parameter: one full tensor at a time
      const at::Tensor whole = at::empty(one.shape, at::kFloat);
      start_values(job, one.parameter, whole);
      job.engine.store->load(one.parameter, whole);
    }
  }
  pretrained ? start_from(job, *pretrained, world) : start_forms(job, {}, world);
  job.engine.store->updated();
}

}  // namespace cairn::train
