#pragma once
#include <map>
#include <string>

#include "planner/sbp/placed_graph.h"

namespace cairn::planner {

struct InferOptions {
  enum class By { greedy, search };
  By by = By::search;
  bool training = true;  // gradients are redistributed too
  // Fixed placements by tensor name: of inputs, parameters or results. An input that is not fixed is split along its first dim over the
  // sample axes and replicated along others. A parameter that is not fixed is placed as its first reader wants it.
  std::map<std::string, NdSbp> fixed = {};
  std::map<std::string, NdSbp> gradients = {};  // where parameters' gradients end up; absent: as the parameter is placed
  std::vector<std::string> sample_axes = {"island", "dp", "shard"};
  // Operations read whole parameters along the sample axes, as training does: replicas (and ZeRO) are the trainer's business.
  bool data_parallel = false;
};

// Placement search: chooses a signature for every operation so that the redistributions between them are cheap.
//
// greedy: in running order, the signature whose inputs are cheapest to bring, their gradients included. Ties go to the one that takes most
// inputs as they are, then to the one with the highest degree of parallelism, then to the first.
//
// search: the cheapest of all combinations by variable elimination (search.cpp), where the graph is narrow enough; else, as with three
// axes, greedy improved one axis at a time.
//
// A pure function of its arguments: every rank gets the same result.
PlacedGraph infer(const OpGraph& graph, Boxing& boxing, const InferOptions& options = {});

}  // namespace cairn::planner
