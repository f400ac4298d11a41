#pragma once
#include "mesh/swap/tensor_swapper.h"
#include "sync/sync.h"

namespace cairn::train {

// What the tiers of this rank did since the last call, for the metrics of a step.
sync::StepMetrics offload_metrics(mesh::TensorSwapper& swapper);

}  // namespace cairn::train
