#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::parallel {

// How a run is laid out over machines: what people write, planners search, the trainer executes and the simulator costs. A value;
// saved with every run.
struct Plan {
  mesh::Mesh mesh;
  std::map<std::string, mesh::Placement> placements;  // by parameter name; replicated where absent
  std::map<std::string, std::string> sync;            // rule by replicating axis
  int64_t micro_batch = 1;                            // samples of one pass on one rank
  std::string precision = "fp32";

  bool operator==(const Plan&) const = default;
};

std::string to_json(const Plan& plan);

}  // namespace cairn::parallel
