#include "parallel/plan.h"

#include <nlohmann/json.hpp>

namespace cairn::parallel {

std::string to_json(const Plan& plan) {
  nlohmann::ordered_json axes = nlohmann::ordered_json::object(), placements = nlohmann::ordered_json::object();
  for (const mesh::Axis& axis : plan.mesh.axes) axes[axis.name] = axis.size;
  for (const auto& [name, placement] : plan.placements) placements[name] = mesh::to_string(placement);
  nlohmann::ordered_json json = {{"mesh", axes},      {"ranks", plan.mesh.ranks},        {"placements", placements},
                                 {"sync", plan.sync}, {"micro_batch", plan.micro_batch}, {"precision", plan.precision}};
  return json.dump(2) + "\n";
}

}  // namespace cairn::parallel
