#pragma once
#include <string>

namespace cairn::mesh {
struct Placement;
}
namespace cairn::model {
struct Parameter;
}

namespace cairn::planner {

// Why a parameter has this placement, as a sentence for people, from its logical axes.
std::string placement_reason(const model::Parameter& parameter, const mesh::Placement& placement);

}  // namespace cairn::planner
