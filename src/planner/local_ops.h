#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "planner/op_graph.h"

namespace cairn::planner {

// What one rank computes of an operation, in plain differentiable ATen: `held` is what it holds of the inputs, in the forms that its
// signature wants. `rows`: of a lookup, which rows of the table are here.
at::Tensor compute(const OpGraph& graph, const GraphOp& op, const std::vector<at::Tensor>& held, mesh::Interval rows);

}  // namespace cairn::planner
