// Buffers that belong to the state of a run.
#pragma once
#include "mesh/named_tensor.h"
#include "model/call.h"

namespace cairn::model {

// The masks of pruned weights, under the names NAME.mask (bit_mask.h). They never change in a run.
mesh::NamedTensors mask_buffers(const Buffers& buffers);

}  // namespace cairn::model
