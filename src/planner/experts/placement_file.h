#pragma once
#include <filesystem>
#include <string>

#include "planner/experts/place_experts.h"

namespace cairn::planner {

// What a placement was made for. A placement of another model or mesh is refused.
struct PlacementTarget {
  std::string model;  // the hash of the model's configuration
  std::string mesh;   // "ep=4"
  int layers = 0;     // with experts
  int experts = 0;
  int ranks = 1;
};

// JSON: {"format": "cairn expert placement 1", "model", "mesh", "layers", "experts", "ranks", "placement": [[rank of each expert], ...],
// "checksum"}.
void save_placement(const std::filesystem::path& path, const ExpertPlacement& placement, const PlacementTarget& target);
// Refuses a damaged file, a placement that is not balanced, and one of another target; says what differs.
ExpertPlacement load_placement(const std::filesystem::path& path, const PlacementTarget& target);

}  // namespace cairn::planner
