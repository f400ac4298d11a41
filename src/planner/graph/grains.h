#pragma once
#include "planner/graph/op_graph.h"

namespace cairn::planner {

// Says how a dim of a tensor may be cut.
void set_grain(OpGraph& graph, int tensor, size_t dim, const Grain& grain);

// What holds for the heads of an attention holds for whatever makes them and reads them: hands grains on between dims that are the same
// index of an operation, both ways, until nothing changes.
void propagate_grains(OpGraph& graph);

}  // namespace cairn::planner
