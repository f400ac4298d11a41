#pragma once
#include <cstdint>

#include "comm/link_model.h"
#include "planner/sbp/execute.h"

namespace cairn::study {

// A placed graph, run on as many ranks as its mesh has, on a virtual network.
struct GraphRun {
  const planner::PlacedGraph& placed;
  const planner::LocalTensors& whole;  // inputs and parameters
  comm::LinkModel link = {};
  double flops_per_s = 0;
  int steps = 1;
  double rate = 0;  // of plain gradient descent after each step; parameters lie where their gradients do
};
struct GraphResult {
  double loss = 0;
  planner::LocalTensors gradients;   // whole, of the last step
  planner::LocalTensors parameters;  // whole, at the end
  int64_t bytes = 0;                 // in a step: activations, parameters and gradients, as the ledger has them
  double seconds = 0;                // of a step, on the virtual network's clock
};
GraphResult run_graph(const GraphRun& run);

// The same in one process.
GraphResult run_graph_alone(const planner::OpGraph& graph, const planner::LocalTensors& whole, int steps = 1, double rate = 0);

// Of any element, as a share of the largest of its tensor.
double furthest(const planner::LocalTensors& a, const planner::LocalTensors& b);

}  // namespace cairn::study
