#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "comm/label.h"
#include "mesh/redistribute_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// `redistribute` as a step of an autograd graph: its backward redistributes the gradient along the reverse pair, booked as gradient. For
// blocks derived by autograd; blocks written by hand call redistribute with `backward_of`. The world must outlive the graph, and every rank
// must run backward alike, on the world's own thread (where autograd runs a graph of CPU tensors).
at::Tensor redistribute_differentiably(comm::World& world, const at::Tensor& local, std::shared_ptr<const RedistributePlan> plan,
                                       comm::Label label);

}  // namespace cairn::mesh
