#pragma once
#include <cstdint>
#include <vector>

#include "planner/graph/op_graph.h"

namespace cairn::planner {

// Values whose last dim must be split the same way, because the operations between them work on single indices of it: the output of a
// product, with its bias, through an activation, up to the next product. The heads of an attention, from the products that make them to the
// product that reads its result, are one class; the residual stream is another.
struct WidthClass {
  struct Edge {  // a dim of a parameter that is split with it
    int parameter, dim;
  };

  std::vector<int> values = {};
  std::vector<Edge> edges = {};
  std::vector<int> makers = {};   // products whose output is in the class, in running order
  std::vector<int> readers = {};  // products whose input is
  std::vector<int> attentions = {};
  bool whole = false;  // something needs all indices at once: a norm, an unknown operation, a sum with an embedding
  bool last = false;   // only the cross entropy reads it, or nothing
  int64_t depth = 0;   // fewest products from a value that is whole
};

struct WidthClasses {
  std::vector<WidthClass> classes;
  std::vector<int> of;  // by tensor: its class; -1: not a value with a width
};
WidthClasses width_classes(const OpGraph& graph);

}  // namespace cairn::planner
