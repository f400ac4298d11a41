#pragma once
#include <string>

namespace cairn::train {
struct Planned;
}

namespace cairn::cli {

// What inference makes of a recipe's model on its mesh (planner/infer.h): a placement for every tensor of a pass, weights included, and
// every change of placement with its bytes. `how`: "rules" (weights along tp as the structural rules place them, whole along other axes) or
// "free" (nothing is said but where the samples are). As tables, or as JSON.
std::string inferred_placements(const train::Planned& planned, const std::string& how, bool json);

}  // namespace cairn::cli
