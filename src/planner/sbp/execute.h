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

// A rank's part of a whole tensor under a placement. Of a partial sum the first coordinate along the axis has everything, others zeros.
at::Tensor local_part(const at::Tensor& whole, const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh, int rank);

// Runs a placed graph on the ranks of a world: moves by redistribute, operations by plain ATen. It checks that a placement is right and
// sends the bytes that it promises; training runs the model's own blocks. `held`: inputs and parameters, placed as `placed` says. Returns
// the last value of the graph, whole (a scalar where gradients are wanted), and this rank's part of the parameters' gradients. Collective.
// Ranks compare their plans first; the error names those that differ.
struct ExecuteOptions {
  double flops_per_s = 0;  // of a rank, to simulate computation on the world's clock; 0: do not
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
