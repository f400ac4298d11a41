#pragma once
#include <map>
#include <string>
#include <vector>

#include "mesh/placement.h"

namespace cairn::train {
struct Planned;
}

namespace cairn::cli {

struct InferRequest {
  std::string how;                  // "rules": weights along tp by the structural rules; "free": only the placement of samples is given
  std::vector<std::string> links;   // "dp=20ms,100Mbit": choose by seconds, not bytes
  std::vector<std::string> places;  // "lm_head.weight=B": a parameter along tp, before the rules
};

// The result of placement inference (planner/sbp/infer.h): a placement for every tensor of one pass, weights included, and every
// redistribution with its bytes.
struct Inferred {
  std::string tables, json;
  std::map<std::string, mesh::Placement> parameters;  // as a Plan has them, replicated ones included
};
Inferred inferred_placements(const train::Planned& planned, const InferRequest& request);

}  // namespace cairn::cli
