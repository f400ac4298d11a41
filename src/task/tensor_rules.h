// Tensor parallelism for a task, by RedCoast's two rules (arXiv:2310.16355), from a trace of its loss.
//
//   R1  Along a chain of products, the first splits its weight by outputs, the next by inputs, and so on: what lies between a pair stays
//       local, and one sum follows it.
//   R2  So do the products that make the heads of an attention, and the one that reads its result.
//
// Tables that are looked up are split by rows. A bias is split with what it is added to. Everything else is replicated, and so is a dim
// with fewer indices than ranks.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mesh/dtensor.h"
#include "task/params.h"

namespace cairn::task {

// Where a parameter lies along tp, and the rule that says so.
struct TensorRule {
  int64_t dim = -1;  // split along it; -1: replicated
  std::string rule;
};

// Runs `loss` once with DTensors, all replicated, and derives a rule for each parameter from the operations that it does with them. No
// communication. Never looks at names.
std::map<std::string, TensorRule> tensor_rules(const std::shared_ptr<mesh::DTensorAxis>& axis, const Params& params,
                                               const std::function<void(const Params&)>& loss);

}  // namespace cairn::task
