#pragma once
#include <cstdint>
#include <vector>

#include "planner/graph/op_graph.h"

namespace cairn::planner {

// Values whose last dim has to be cut alike, since operations between them work on single indices of it: what a product makes, with its
// bias, through an activation, up to the next product. The heads of an attention, from the products that make them to the one that reads
// its result, are one class; the residual stream is one, too.
struct WidthClass {
  struct Edge {  // a dim of a parameter that is cut with it
    int parameter, dim;
  };

  std::vector<int> values = {};
  std::vector<Edge> edges = {};
  std::vector<int> makers = {};   // products whose outputs are of it, in running order
  std::vector<int> readers = {};  // products whose inputs are
  std::vector<int> attentions = {};
  bool whole = false;  // something needs all of its indices at once: a norm, an unknown operation, a sum with what a table gave
  bool last = false;   // the cross entropy reads it, or nobody
  int64_t depth = 0;   // products from a whole value to here, the shortest way
};

struct WidthClasses {
  std::vector<WidthClass> classes;
  std::vector<int> of;  // by tensor: its class; -1: not a value with a width
};
WidthClasses width_classes(const OpGraph& graph);

}  // namespace cairn::planner
