#pragma once
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "planner/sbp/placed_graph.h"

namespace cairn::comm {
class World;
}

namespace cairn::planner {

// What this rank has of some tensors, by name.
using LocalTensors = std::map<std::string, at::Tensor>;

// What a rank holds of a whole tensor in these forms; terms of a sum are at the axis' first coordinate.
at::Tensor local_part(const at::Tensor& whole, const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh, int rank);

// Runs a placed graph on the ranks of a world, the moves by redistribute, the operations by plain ATen. `held`: inputs and parameters as
// `placed` says they lie. Gives back the graph's last value, whole, which is a scalar where gradients are wanted; and what this rank holds
// of the gradients of the parameters. A check that a plan is right and moves what it says: training runs the model's own blocks.
//
// Ranks compare their plans first; those that differ are named.
struct ExecuteOptions {
  double flops_per_s = 0;  // of a rank: each operation takes as long as this says on the world's clock; 0: as long as it takes
};
struct ExecutionResult {
  at::Tensor result;
  LocalTensors gradients;
};
ExecutionResult execute(comm::World& world, const PlacedGraph& placed, const LocalTensors& held, const ExecuteOptions& options = {});

// Which indices of an operation's tensors a rank has, for the operations whose result depends on it.
struct LocalRanges {
  mesh::Interval rows = {};       // of a lookup: rows of the table
  mesh::Interval positions = {};  // of a rotation: positions of the sequence
};

// What one rank computes of an operation, in plain differentiable ATen (local_ops.cpp). `inputs`: what it holds of the inputs, placed as
// the operation's signature wants them.
at::Tensor compute(const OpGraph& graph, const GraphOp& op, const std::vector<at::Tensor>& inputs, const LocalRanges& ranges);

}  // namespace cairn::planner
