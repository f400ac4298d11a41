#pragma once
#include <vector>

#include "model/card.h"

namespace cairn::model {

// The parameters of a block's operations, in their order.
inline std::vector<mesh::ParamId> named_parameters(const Card& card) {
  std::vector<mesh::ParamId> all;
  for (const BlockOp& operation : card.operations) all.insert(all.end(), operation.parameters.begin(), operation.parameters.end());
  return all;
}

}  // namespace cairn::model
