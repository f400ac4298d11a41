#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "planner/graph/op_graph.h"

namespace cairn::planner {

// Where a rank stands in what is shared out.
struct LocalRanges {
  mesh::Interval rows = {};       // of a lookup: of the table
  mesh::Interval positions = {};  // of a rotation: of the sequence
};

// What one rank computes of an operation, in plain differentiable ATen: `held` is what it holds of the inputs, in the forms that its
// signature wants.
at::Tensor compute(const OpGraph& graph, const GraphOp& op, const std::vector<at::Tensor>& held, const LocalRanges& here);

}  // namespace cairn::planner
