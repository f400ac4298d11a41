#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/gradients.h"

namespace cairn::model {

// One operation of a block, as placement, recompute, swap and cost rules see it. Costs are per token of the pass; `per_pair` ones
// are per pair of a query and a key that it sees.
struct Operation {
  enum class Kind { product, attention, norm, elementwise, lookup, other };
  std::string name;
  Kind kind = Kind::other;
  std::vector<mesh::ParamId> parameters = {};
  std::vector<std::string> axes = {};  // logical axes of its output, outermost first
  double flops_per_token = 0;          // forward; the two gradients of a product cost as much each
  double flops_per_pair = 0;
  double saved_elements_per_token = 0;  // kept for backward
};

// What a block is, without its code: the values it reads and writes and its operations in order.
struct Card {
  std::string name = {};  // "layers.3.attention"
  std::vector<std::string> reads = {};
  std::vector<std::string> writes = {};
  std::vector<std::string> may_read = {};  // fields of a batch that it takes notice of where they are there
  std::vector<Operation> operations = {};
  std::vector<std::string> buffers = {};
  bool gradients_together = false;  // both gradients come from one backward run (autograd inside); they cannot be placed apart
};

}  // namespace cairn::model
