#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "comm/label.h"
#include "mesh/redistribute_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// `redistribute` as a node of an autograd graph. Its backward redistributes the gradient by backward_of(change) and books the bytes as
// gradient. For blocks that use autograd; hand-written blocks call redistribute with backward_of themselves. The world must outlive the
// graph. Every rank must run the same backward, on the world's own thread (where autograd runs graphs of CPU tensors).
at::Tensor redistribute_differentiably(comm::World& world, const at::Tensor& local, std::shared_ptr<const RedistributePlan> plan,
                                       comm::Label label);

}  // namespace cairn::mesh
