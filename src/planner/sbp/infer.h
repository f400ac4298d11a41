#pragma once
#include <map>
#include <string>

#include "planner/sbp/placed_graph.h"

namespace cairn::planner {

struct InferOptions {
  enum class By { greedy, search };
  By by = By::search;
  bool training = true;  // gradients are moved too
  // What people have decided, by the tensor's name: how inputs and parameters lie, and results if they care. An input that nobody has
  // decided is split along its first dim over the axes of samples, whole along others. A parameter that nobody has decided lies as its
  // first reader wants it.
  std::map<std::string, NdSbp> fixed = {};
  std::map<std::string, NdSbp> gradients = {};  // how parameters' gradients end; as the parameter lies where nothing is said
  std::vector<std::string> sample_axes = {"island", "dp", "shard"};
};

// Chooses a signature for every operation, so that changing forms between them costs little.
//
// greedy: in running order, the signature whose inputs are cheapest to come by, counting their gradients' way back too; ties go to the one
// that takes most inputs as they are, then to the one that shares out most work, then to the first.
//
// search: the cheapest of all together, where the graph is narrow enough to tell (it eliminates operations one by one, keeping the best
// choice for each choice of their neighbours); else, as with three axes, greedy improved one axis at a time.
//
// Decided from the arguments alone, in a fixed order: every rank gets the same.
PlacedGraph infer(const OpGraph& graph, Boxing& boxing, const InferOptions& options = {});

}  // namespace cairn::planner
